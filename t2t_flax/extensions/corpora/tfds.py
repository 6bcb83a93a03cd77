"""Sentence pairs of a TensorFlow dataset, prepared and read without TensorFlow.

New datasets are prepared as ArrayRecord. A folder prepared earlier as TFRecord (the default with
TensorFlow installed) is read unchanged.
"""

import contextlib
import importlib
import pkgutil
import re
import struct
from collections.abc import Iterator

from etils import epath

from t2t_flax.data.file_hashes import file_sha256
from t2t_flax.data.sources import Context, Source, sha256_of
from t2t_flax.errors import UserError, require

# NAME may hold a version and SPLIT a slice, both with colons:
# tfds:wmt14_translate/de-en:1.0.0:train[:1000].
_PART = r"\w+(?:\[[^\]]*\])?"
_SPEC = re.compile(rf"tfds:(?P<name>.+?):(?P<split>{_PART}(?:\+{_PART})*)")
_NAMESPACED = re.compile(r"[^/:]+:[A-Za-z_]")
_READ_AT_ONCE = 1024


class TfdsSource(Source):
    """`tfds:NAME:SPLIT`, downloaded and prepared on first use.

    The data is in `data_dir` or TFDS's default folder. Raises UserError if the dataset, its
    configuration, the split or the languages are unknown, or the download fails.
    """

    def __init__(
        self, spec: str, languages: tuple[str, str], *, data_dir: str = "", label: str = ""
    ):
        match = _SPEC.fullmatch(spec)
        label = label or repr(spec)
        if not match:
            raise UserError(
                f"{label}: expected tfds:NAME:SPLIT, for instance"
                " tfds:wmt14_translate/de-en:train[:1000]"
            )
        builder = _prepared(match["name"], data_dir or None, label)
        features = list(builder.info.features)
        if not set(languages) <= set(features):
            raise UserError(
                f"{label}: config.data.source_language = {languages[0]!r} and"
                f" config.data.target_language = {languages[1]!r} must both be among the features"
                f" of the dataset, which are {', '.join(features)}"
            )
        try:
            split = builder.info.splits[match["split"]]
            self._parts = split.file_instructions
        except (ValueError, KeyError) as error:
            splits = ", ".join(
                f"{name} ({info.num_examples} pairs)" for name, info in builder.info.splits.items()
            )
            raise UserError(
                f"{label}: no split {match['split']!r}: {error}. The dataset has {splits}"
            ) from None
        super().__init__(
            spec, split.num_examples, files=[epath.Path(part.filename) for part in self._parts]
        )
        self._features, self._languages = builder.info.features, languages

    def read(self):
        i = 0
        for part in self._parts:
            records = tfrecords if ".tfrecord" in epath.Path(part.filename).name else array_records
            for record in records(part.filename, part.skip, part.take):
                example = self._features.deserialize_example_np(record)
                try:
                    source, target = (
                        bytes(example[language]).decode() for language in self._languages
                    )
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{self.where(i)}: byte offset {error.start} is not valid UTF-8"
                    ) from None
                yield source, target
                i += 1

    def fingerprint(self):
        parts = zip(self._parts, self.files, strict=True)
        return sha256_of(
            "tfds",
            *self._languages,
            *(f"{part.skip} {part.take} {file_sha256(f)}" for part, f in parts),
        )


def open_spec(spec: str, context: Context) -> TfdsSource:
    """Open the prepared dataset. Raises UserError if it is missing."""
    return TfdsSource(spec, context.languages, data_dir=context.root, label=context.label)


def writes(spec: str, root: str) -> bool:
    """Return True if the dataset is not prepared in `root` yet."""
    folder = epath.Path(root) / spec.split(":")[1].partition("/")[0]
    levels = "*/dataset_info.json", "*/*/dataset_info.json"  # NAME/VERSION and NAME/CONFIG/VERSION
    return not any(any(folder.glob(level)) for level in levels)


def array_records(path: str, skip: int, take: int) -> Iterator[bytes]:
    """Yield records skip .. skip + take - 1 of an ArrayRecord file."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    with ArrayRecordDataSource([str(path)]) as records:
        for start in range(skip, skip + take, _READ_AT_ONCE):
            yield from records.__getitems__(range(start, min(start + _READ_AT_ONCE, skip + take)))


def tfrecords(path: str, skip: int, take: int) -> Iterator[bytes]:
    """Yield records skip .. skip + take - 1 of a TFRecord file.

    Each record is a length (8 bytes), its checksum (4), the data and the data's checksum (4),
    little-endian. Checksums are not verified.
    """
    with epath.Path(path).open("rb") as file:
        for i in range(skip + take):
            header = file.read(12)
            size = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else 0
            record = file.read(size)
            if len(header) < 12 or len(record) < size or len(file.read(4)) < 4:
                raise UserError(
                    f"{path}: ends inside record {i + 1} of {skip + take}; prepare the dataset"
                    " again"
                )
            if i >= skip:
                yield record


def _prepared(name: str, data_dir: str | None, label: str):
    """Return the dataset's builder.

    The data is downloaded and prepared if needed.
    """
    alternative = "or give your own files: two text files 'SRC,TGT'"
    # TFDS would download and run its code, and the config may be somebody else's.
    if _NAMESPACED.match(name):
        raise UserError(
            f"{label}: only the datasets of TFDS itself are read, not those of a namespace;"
            f" {alternative}"
        )
    require("tensorflow_datasets", "tfds", label)
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered

    _register_translation_datasets()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        if builder.is_prepared():
            return builder
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record")
    except registered.DatasetNotFoundError:
        raise UserError(
            f"{label}: TFDS knows no dataset {name!r}; see"
            f" https://www.tensorflow.org/datasets/catalog, {alternative}"
        ) from None
    except (ValueError, AssertionError) as error:
        base = name.partition("/")[0].partition(":")[0]
        configs: list[str] = []
        with contextlib.suppress(ValueError, registered.DatasetNotFoundError):
            configs = list(tfds.builder_cls(base).builder_configs)
        first_line = str(error).partition("\n")[0]
        raise UserError(
            f"{label}: {first_line} Configurations of {base}: {', '.join(configs) or 'none'}"
        ) from None
    try:
        builder.download_and_prepare()
    except Exception as error:  # noqa: BLE001  (any of dozens of network, archive and parser errors)
        raise UserError(
            f"{label}: TFDS could not download and prepare {name} in {builder.data_dir}:"
            f" {type(error).__name__}: {error}\nEither prepare it where the download works and name"
            f" that data_dir here in config.data.root, {alternative}"
        ) from error
    return builder


def _register_translation_datasets() -> None:
    """Import TFDS's modules of translation datasets.

    TFDS finds only imported ones.
    """
    import tensorflow_datasets.translate as package

    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.endswith("_test"):  # TFDS's own tests, which need TensorFlow
            importlib.import_module(f"{package.__name__}.{module.name}")
