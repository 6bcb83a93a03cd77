"""Model cards name test sets and commands without the folders of the author's machine."""

from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.extensions.interop.model_card import without_folders

PREFIXES = ("", "tsv:", "jsonl:", "parquet:", "hf:", "NAME=", "NAME=jsonl:", "--workdir=", "--config.data.train=tsv:")
ROOTS = ("/", "~/", "../", "./", "file:///", "//")
folders = st.lists(st.from_regex(r"secret[\w =.:-]{0,5}", fullmatch=True), max_size=4)
names = st.from_regex(r"[a-z]\w{0,5}\.(en|tsv|jsonl)", fullmatch=True)
paths = st.tuples(st.sampled_from(PREFIXES), st.sampled_from(ROOTS), folders, names)


@given(st.lists(paths, min_size=1, max_size=3), st.sampled_from((",", ";", "; ")))
def test_absolute_folders_go_and_the_rest_stays(parts, separator):
    spec = separator.join(prefix + root + "/".join([*inside, name]) for prefix, root, inside, name in parts)
    assert without_folders(spec) == separator.join(prefix + name for prefix, _, _, name in parts)


@given(
    st.sampled_from(PREFIXES),
    st.sampled_from(("gs://", "s3://", "https://")),
    st.from_regex(r"[a-z]+(/[\w=:-]+){0,3}/[a-z]+", fullmatch=True),
)
def test_remote_addresses_stay(prefix, scheme, path):
    assert without_folders(prefix + scheme + path) == prefix + scheme + path


def test_names_that_are_no_paths_stay():
    for spec in ("toy:train:300", "tfds:wmt14_translate/de-en", "--push=hub:me/toy", "data/a.en,data/a.de"):
        assert without_folders(spec) == spec
    assert without_folders("/home/secret,secret/b.de") == "secret,b.de"
