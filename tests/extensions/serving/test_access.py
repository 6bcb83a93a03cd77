"""Keys, accounts of a minute, addresses, codes of languages, and the access log, without a server."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_flax.errors import UserError
from t2t_flax.extensions.serving.access import Access, Allowance, Keys, network_of
from t2t_flax.extensions.serving.access_log import open_access_log, request_id
from t2t_flax.extensions.serving.languages import can_detect, detected, matching
from t2t_flax.extensions.serving.text import RequestError


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from("ab"), st.integers(0, 50)), max_size=40))
def test_a_client_has_its_minute_whatever_others_send(requests):
    """What a client sends never exceeds what was full at the start and has been filled since; what is refused may be sent after the
    time that the refusal tells.
    """
    clock, limit = Clock(), Allowance(requests=6, characters=60)
    access, alone = Access(allowance=limit, clock=clock), {name: Access(allowance=limit, clock=clock) for name in "ab"}
    taken = {name: (0, 0) for name in "ab"}

    def passes(access, client, characters):
        try:
            access.take(client, characters)
        except RequestError as error:
            assert error.status == 429
            return int(error.headers["Retry-After"])
        return 0

    for pause, client, characters in requests:
        clock.now += pause
        wait = passes(access, client, characters)
        assert wait == passes(alone[client], client, characters)
        if wait:
            before, clock.now = clock.now, clock.now + wait
            assert not passes(access, client, characters) and not passes(alone[client], client, characters)
            assert before + wait == clock.now
        count, total = taken[client]
        taken[client] = count + 1, total + characters
        filled = 1 + clock.now / 60
        assert taken[client][0] <= 6 * filled + 1e-3 and taken[client][1] <= 60 * filled + 1e-3


def test_one_limit_alone_and_none():
    clock = Clock()
    requests = Access(allowance=Allowance(requests=1), clock=clock)
    requests.take("a", 10**9)
    with pytest.raises(RequestError, match="more than 1 requests in a minute: try again in 60 s"):
        requests.take("a", 0)
    characters = Access(allowance=Allowance(characters=10), clock=clock)
    for _ in range(5):
        characters.take("a", 2)
    with pytest.raises(RequestError, match="more than 10 characters in a minute: try again in 6 s"):
        characters.take("a", 1)
    with pytest.raises(RequestError, match="11 characters: at most 10 may be sent in a minute"):
        characters.take("b", 11)
    for _ in range(100):
        Access().take("a", 10**9)


def test_clients_of_the_last_minute_are_remembered_only():
    clock = Clock()
    access = Access(allowance=Allowance(requests=1), clock=clock)
    for number in range(1000):
        clock.now += 1
        access.take(f"client {number}", 0)
    assert len(access._accounts) <= 61


@pytest.mark.parametrize(
    "address, network",
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_its_address_or_its_network(address, network):
    assert network_of(address) == network


def test_keys_of_a_file_are_read_again_when_it_has_changed(tmp_path, caplog):
    file = tmp_path / "keys"
    file.write_text("# keys\nfirst Ann's laptop\n\nsecond\n")
    keys = Keys(["given"], str(file))
    assert [keys.name(key) for key in ("first", "second", "given", "Ann's", "#")] == [
        "Ann's laptop", "key of line 4", "key 1", None, None,
    ]  # fmt: skip
    file.write_text("third\n")
    assert [keys.name(key) for key in ("first", "third")] == [None, "key of line 1"]
    file.write_text("\n")
    assert keys.name("third") and "has no key" in caplog.text and "the keys of before count" in caplog.text
    file.unlink()
    assert keys.name("third")
    file.write_text("fourth\n")
    assert keys.name("fourth") and not keys.name("third")


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "it has no key"),
        (b"a\na x\n", "line 2 repeats the key"),
        (b"\xff", "is not UTF-8"),
        ("kéy".encode(), "line 1: a key has letters without accents"),
        (None, "No such file"),
    ],
)
def test_a_wrong_file_of_keys_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(UserError, match=f"--api-keys=.*keys: .*{message}"):
        Keys(file=str(tmp_path / "keys"))


def test_a_key_may_have_any_sign_and_stand_before_a_tab(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbffirst#1\tAnn #2\r\n  # comment\nsecond\n")
    keys = Keys(file=str(file))
    names = [keys.name(key) for key in ("first#1", "first", "second", "#")]
    assert names == ["Ann #2", None, "key of line 3", None]


@pytest.mark.parametrize("key", ["", "a b", "é", "a\n"])
def test_a_key_that_no_client_can_send_is_refused(key):
    with pytest.raises(UserError, match="--api-key: a key has letters"):
        Keys(["good", key])


@pytest.mark.parametrize(
    "code, known, meant",
    [
        ("en", ["de", "en"], "en"),
        ("EN", ["de", "en"], "en"),
        ("en-US", ["de", "en"], "en"),
        ("en_us", ["de", "en"], "en"),
        ("de", ["de_AT", "en"], "de_AT"),
        ("pt-BR", ["pt", "pt_PT"], "pt"),
        ("pt-br", ["pt_BR", "pt_PT"], "pt_BR"),
        ("pt", ["pt_BR", "pt_PT"], None),
        ("zh_CN", ["zh_Hans", "zh_Hant"], "zh_Hans"),
        ("zh-TW", ["zh_Hans", "zh_Hant"], "zh_Hant"),
        ("zh", ["zh_Hans", "zh_Hant"], "zh_Hans"),
        ("zt", ["zh_Hans", "zh_Hant"], "zh_Hant"),
        ("zh-TW", ["zh_Hans"], None),
        ("zh-TW", ["zh"], None),
        ("zho_Hans", ["zh"], "zh"),
        ("nb", ["no"], "no"),
        ("iw", ["he"], "he"),
        ("fr", ["de", "en"], None),
        ("", ["en"], None),
    ],
)
def test_codes_of_clients_find_those_of_the_models(code, known, meant):
    assert matching(code, known) == meant


@pytest.mark.skipif(not can_detect(), reason="needs the extra langid")
def test_a_text_is_detected_among_the_languages_of_the_models():
    (first, sure), (second, unsure) = detected("Das Wetter ist heute sehr schön.", ["en", "de"])
    assert (first, second) == ("de", "en") and sure > 90 > 10 > unsure
    assert all(confidence < 10 for _, confidence in detected("Les enfants jouent dans le jardin.", ["en", "de"]))
    assert detected("12:30", ["zh_Hans", "de"]) == [("zh_Hans", 0), ("de", 0)]
    assert detected("你好，我是学生。", ["en", "zh_Hans"])[0][0] == "zh_Hans"


def test_the_access_log_follows_a_renamed_file(tmp_path):
    log = open_access_log(str(tmp_path / "log"))
    log({"id": "a"})
    (tmp_path / "log").rename(tmp_path / "log.1")
    log({"id": "é"})
    assert json.loads((tmp_path / "log.1").read_text()) == {"id": "a"}
    assert json.loads((tmp_path / "log").read_text()) == {"id": "é"}
    with pytest.raises(UserError, match="--access-log=.* cannot be written: Is a directory"):
        open_access_log(str(tmp_path))


def test_an_access_log_that_cannot_be_written_is_said_once(tmp_path, caplog):
    """Requests are answered nevertheless, and entries are written again once they can be."""
    (tmp_path / "logs").mkdir()
    log = open_access_log(str(tmp_path / "logs" / "log"))
    (tmp_path / "logs").rename(tmp_path / "elsewhere")
    log({"id": "a"})
    log({"id": "b"})
    assert caplog.text.count("cannot be written: No such file or directory") == 1
    (tmp_path / "logs").mkdir()
    log({"id": "c"})
    assert json.loads((tmp_path / "logs" / "log").read_text()) == {"id": "c"}


def test_ids_of_clients_are_kept_if_they_are_plain():
    assert request_id("a-1.B_2") == "a-1.B_2"
    for given_id in ("", "a b", "a" * 65, "a\n", "é"):
        assert request_id(given_id) not in ("", given_id)
    assert request_id("") != request_id("")
