"""Language codes in the spelling that each library knows, and in file names."""

import dataclasses
import difflib
import functools
import re
from collections.abc import Collection

from t2t_flax.errors import UserError

_ISO_639 = (
    "aa=aar ab=abk ae=ave af=afr ak=aka am=amh an=arg ar=ara=arb as=asm av=ava ay=aym=ayr"
    " az=aze=azj ba=bak be=bel bg=bul bi=bis bm=bam bn=ben bo=bod=tib br=bre bs=bos ca=cat"
    " ce=che ch=cha co=cos cr=cre cs=ces=cze cu=chu cv=chv cy=cym=wel da=dan de=deu=ger dv=div"
    " dz=dzo ee=ewe el=ell=gre en=eng eo=epo es=spa et=est=ekk eu=eus=baq fa=fas=per=pes ff=ful"
    " fi=fin fj=fij fo=fao fr=fra=fre fy=fry ga=gle gd=gla gl=glg gn=grn=gug gu=guj gv=glv"
    " ha=hau he=heb hi=hin ho=hmo hr=hrv ht=hat hu=hun hy=hye=arm hz=her ia=ina id=ind ie=ile"
    " ig=ibo ii=iii ik=ipk io=ido is=isl=ice it=ita iu=iku ja=jpn jv=jav ka=kat=geo kg=kon"
    " ki=kik kj=kua kk=kaz kl=kal km=khm kn=kan ko=kor kr=kau=knc ks=kas ku=kur=kmr kv=kom"
    " kw=cor ky=kir la=lat lb=ltz lg=lug li=lim ln=lin lo=lao lt=lit lu=lub lv=lav=lvs"
    " mg=mlg=plt mh=mah mi=mri=mao mk=mkd=mac ml=mal mn=mon=khk mr=mar ms=msa=may=zsm mt=mlt"
    " my=mya=bur na=nau nb=nob nd=nde ne=nep=npi ng=ndo nl=nld=dut nn=nno no=nor nr=nbl nso=ns"
    " nv=nav ny=nya oc=oci oj=oji om=orm=gaz or=ori=ory os=oss pa=pan pi=pli pl=pol ps=pus=pbt"
    " pt=por qu=que=quy rm=roh rn=run ro=ron=rum ru=rus rw=kin sa=san sc=srd sd=snd se=sme"
    " sg=sag sh=hbs si=sin sk=slk=slo sl=slv sm=smo sn=sna so=som sq=sqi=alb=als sr=srp ss=ssw"
    " st=sot su=sun sv=swe sw=swa=swh ta=tam te=tel tg=tgk th=tha ti=tir tk=tuk tl=tgl=fil"
    " tn=tsn to=ton tr=tur ts=tso tt=tat tw=twi ty=tah ug=uig uk=ukr ur=urd uz=uzb=uzn ve=ven"
    " vi=vie vo=vol wa=wln wo=wol xh=xho yi=yid=ydd yo=yor za=zha zh=zho=chi=cmn zu=zul"
)
"""Codes of ISO 639-1, each with its ISO 639-3 and 639-2/B codes.

A macrolanguage also has the code of the individual language in FLORES-200. M2M-100 calls nso ns.
"""
_SPELLINGS = {codes[0]: codes for codes in (entry.split("=") for entry in _ISO_639.split())}
_BASES = {code: base for base, codes in _SPELLINGS.items() for code in codes}
_GROUPS = dict.fromkeys("cdo cjy cpx czh czo gan hak hsn lzh mnp nan wuu yue".split(), "zh") | {
    "nb": "no",
    "nn": "no",
}
_CODE = re.compile(r"([A-Za-z]{2,3})(?:[-_]([A-Za-z]{4}))?(?:[-_][A-Za-z0-9]{2,8})*")
_IN_NAME = re.compile(r"([A-Za-z]{2,3})([-_][A-Z][a-z]{3})?([-_]([A-Z]{2}|\d{3}))?")
_COLUMNS = re.compile(r".*[^/\s]:([^:,/]+),([^:,/]+)(?::[^:]*)?")
_COMPRESSED = re.compile(r"\.(gz|bz2|xz|zst)$")


@dataclasses.dataclass(frozen=True)
class Language:
    """Language code that was read: `de`, `DE`, `deu`, `ger`, `de_AT` or `deu-Latn`.

    Args:
        code: the code as written.
        base: ISO 639-1, or ISO 639-3 if that has none; "und" for an empty code.
        script: ISO 15924, or "".
    """

    code: str
    base: str
    script: str = ""

    @staticmethod
    @functools.lru_cache(1024)  # a server's clients can send any number of codes
    def read(code: str, key: str = "") -> "Language":
        """Read a code. Raises UserError, naming it and the config key, for any other text."""
        match = _CODE.fullmatch(code or "und")
        base = match[1].lower() if match else ""
        if not match or len(base) == 2 and base not in _BASES:
            raise UserError(
                f"{key and f'config.{key} = '}{code!r} is not a language code: write one of ISO"
                " 639, such as de, deu or de_AT."
            )
        return Language(code, _BASES.get(base, base), (match[2] or "").title())

    @staticmethod
    def known(code: str) -> "Language":
        """Read a code; other text becomes "und".

        Other text is, for example, a tag of another program's model.
        """
        try:
            return Language.read(code)
        except UserError:
            return Language.read("")

    @property
    def group(self) -> str:
        """Code of the languages that share its writing, else `base`.

        Cantonese has "zh", Nynorsk "no".
        """
        return _GROUPS.get(self.base, self.base)

    def spelling(self, known: Collection[str]) -> str | None:
        """Return a library's code for the language or its group; None if it has none.

        Args:
            known: codes that the library knows.
        """
        codes = [*_SPELLINGS.get(self.base, [self.base]), *_SPELLINGS.get(self.group, [])]
        return next((code for code in codes if code in known), None)


def near_codes(code: str, known: Collection[str]) -> list[str]:
    """Return the known codes of the same language, or else the ones spelled most alike."""
    base = Language.known(code).base
    same = [one for one in known if base != "und" and Language.known(one).base == base]
    return same or difflib.get_close_matches(code, known, n=5, cutoff=0.5)


def named_languages(spec: str) -> list[Language | None]:
    """Return the languages in the names of a source's columns or files.

    The source is `train.en,train.de` or `FILE.jsonl:en,de`. Endings that both sides share, such as
    .txt and .gz, are passed over.

    Returns:
        One language for the source side and each reference, None where a name has no language;
        [] for one name.
    """
    columns = _COLUMNS.fullmatch(spec.strip())
    names = columns.groups() if columns else spec.split(",")
    source, *others = (
        [*_COMPRESSED.sub("", name.strip()).rpartition("/")[2].split(".")] for name in names
    )
    pairs = [_of_pair(source, other) for other in others]
    return (
        [next((first for first, _ in pairs if first), None), *(second for _, second in pairs)]
        if pairs
        else []
    )


def _of_pair(first: list[str], second: list[str]) -> tuple[Language | None, Language | None]:
    while min(len(first), len(second)) > 1 and first[-1] == second[-1]:
        first, second = first[:-1], second[:-1]
    return _of_ending(first[-1]), _of_ending(second[-1])


def _of_ending(text: str) -> Language | None:
    match = _IN_NAME.fullmatch(text)
    known = match and (match[1].lower() in _BASES | _GROUPS or match[2] and len(match[1]) == 3)
    return Language.read(text) if known else None
