"""Storage: workdirs, texts and caches in object stores."""

import os
import sys

from t2t_flax import files

files.object_storage = "t2t_flax.extensions.storage.objects"

# A cached listing would hide files that another host has written since. fsspec reads this when it
# is imported.
for _store in ("gcs", "s3"):
    os.environ.setdefault(f"FSSPEC_{_store.upper()}", '{"use_listings_cache": false}')
    if "fsspec.config" in sys.modules:
        sys.modules["fsspec.config"].conf.setdefault(_store, {}).setdefault(
            "use_listings_cache", False
        )
