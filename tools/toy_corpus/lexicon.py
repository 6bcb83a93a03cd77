"""Lexemes of the built-in English-German corpus and their German inflection.

Tables list one lexeme between semicolons, fields between spaces; an underscore stands for a space
inside a field.
Nouns: English, German, gender (w: weak), German plural.
Verbs: English, past, German (prefix|verb), participle (+: perfect with sein), stem of du and er
where it changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

NOMINATIVE, ACCUSATIVE, DATIVE = 0, 1, 2
_DOUBLED = ("run", "swim", "sit", "shop", "win", "get", "forget")


class Phrase(NamedTuple):
    """Two strings that translate each other."""

    en: str
    de: str


class Noun(NamedTuple):
    """A noun and its plural.

    `gender` is m, f or n. A `weak` masculine takes its plural form in other cases: der Student, den
    Studenten.
    """

    en: str
    plural_en: str
    de: str
    gender: str
    plural: str
    weak: bool


class Adjective(NamedTuple):
    """`stem` takes the endings; it differs from the predicative form in teuer, teures."""

    en: str
    more_en: str
    de: str
    more: str
    stem: str


class Verb(NamedTuple):
    """A verb: `forms` is its German present (ich, du, er, wir), `en3` the English third person."""

    en: str
    en3: str
    past_en: str
    prefix: str
    infinitive: str
    forms: tuple[str, str, str, str]
    participle: str
    auxiliary: str

    @property
    def ing(self) -> str:
        """The English present participle: running, picking up."""
        head, _, particle = self.en.partition(" ")
        if head in _DOUBLED:
            head += head[-1]
        elif head.endswith("e") and not head.endswith("ee"):
            head = head[:-1]
        return f"{head}ing {particle}".strip()

    def full(self, *, zu: bool = False) -> str:
        """Return the infinitive as one word, or with zu: aufmachen, aufzumachen, zu kaufen."""
        if not zu:
            return self.prefix + self.infinitive
        return f"{self.prefix}zu{self.infinitive}" if self.prefix else f"zu {self.infinitive}"


class Place(NamedTuple):
    """A place as a noun, and where (at) and where to (to) it is."""

    noun: Noun
    at: Phrase
    to: Phrase


def read_rows(table: str) -> Iterator[list[str]]:
    for row in table.split(";"):
        yield [field.replace("_", " ") for field in row.split()]


def _add_s(word: str) -> str:
    head, _, particle = word.partition(" ")
    if head.endswith(("s", "x", "z", "ch", "sh", "to", "go")):
        head += "es"
    elif head.endswith("y") and head[-2] not in "aeiou":
        head = head[:-1] + "ies"
    else:
        head += "s"
    return f"{head} {particle}".strip()


def _noun(en: str, de: str, gender: str, plural: str) -> Noun:
    singular, _, plural_en = en.partition("/")
    return Noun(
        singular, plural_en or _add_s(singular), de, gender[0], plural, gender.endswith("w")
    )


def read_nouns(table: str) -> dict[str, Noun]:
    return {noun.en: noun for noun in (_noun(*row) for row in read_rows(table))}


def make_verb(en: str, past_en: str, infinitive: str, participle: str, changed: str = "") -> Verb:
    prefix, _, base = infinitive.rpartition("|")
    stem = base.removesuffix("en")
    second = changed or stem
    link = "e" if not changed and stem.endswith(("t", "d", "chn", "ffn")) else ""
    du = second + link + ("t" if second.endswith(("s", "ß", "z")) else "st")
    auxiliary, participle = (
        ("sein", participle[1:]) if participle.startswith("+") else ("haben", participle)
    )
    forms = (stem + "e", du, f"{second}{link}t", base)
    return Verb(en, _add_s(en), past_en, prefix, base, forms, participle, auxiliary)


def read_verbs(table: str) -> dict[str, Verb]:
    return {verb.en: verb for verb in (make_verb(*row) for row in read_rows(table))}


def make_adjective(en: str, more_en: str, de: str, more: str, stem: str = "") -> Adjective:
    return Adjective(en, more_en, de, more, stem or de)


def read_phrases(table: str) -> dict[str, str]:
    return {en: de for en, de in read_rows(table)}


NAMES = {
    "f": "Anna Clara Emma Julia Laura Lena Maria Nina Paula Sophie Eva".split(),
    "m": "Peter Paul Martin Jan Daniel David Stefan Oliver Simon Robert Anton".split(),
}
OWNERS = read_phrases("my mein; your dein; his sein; her ihr; our unser; their ihr")
KIN = read_nouns(
    """mother Mutter f Mütter; father Vater m Väter; brother Bruder m Brüder;
    sister Schwester f Schwestern; uncle Onkel m Onkel; aunt Tante f Tanten; son Sohn m Söhne;
    daughter Tochter f Töchter; colleague Kollege mw Kollegen; grandmother Großmutter f Großmütter;
    grandfather Großvater m Großväter; neighbor Nachbar mw Nachbarn; wife/wives Frau f Frauen;
    husband Mann m Männer"""
)
PERSONS = read_nouns(
    """man/men Mann m Männer; woman/women Frau f Frauen; child/children Kind n Kinder;
    doctor Arzt m Ärzte; teacher Lehrer m Lehrer; student Student mw Studenten;
    waitress Kellnerin f Kellnerinnen; king König m Könige;
    actress Schauspielerin f Schauspielerinnen; queen Königin f Königinnen; girl Mädchen n Mädchen;
    boy Junge mw Jungen; baker Bäcker m Bäcker; farmer Bauer mw Bauern; lawyer Anwalt m Anwälte;
    cook Koch m Köche; baby Baby n Babys; nurse Krankenschwester f Krankenschwestern;
    policeman/policemen Polizist mw Polizisten; writer Autor m Autoren"""
)
TRADES = {row[0]: (row[1], row[2]) for row in read_rows("""teacher Lehrer Lehrerin;
    doctor Arzt Ärztin; baker Bäcker Bäckerin; cook Koch Köchin; lawyer Anwalt Anwältin;
    painter Maler Malerin; gardener Gärtner Gärtnerin; judge Richter Richterin;
    farmer Bauer Bäuerin; photographer Fotograf Fotografin; engineer Ingenieur Ingenieurin;
    singer Sänger Sängerin; architect Architekt Architektin; pilot Pilot Pilotin;
    translator Übersetzer Übersetzerin""")}  # fmt: skip
FOODS = read_nouns(
    """apple Apfel m Äpfel; pear Birne f Birnen; banana Banane f Bananen; egg Ei n Eier;
    cake Kuchen m Kuchen; lemon Zitrone f Zitronen; onion Zwiebel f Zwiebeln;
    potato Kartoffel f Kartoffeln; tomato Tomate f Tomaten; carrot Karotte f Karotten;
    sausage Wurst f Würste; cookie Keks m Kekse; peach Pfirsich m Pfirsiche; nut Nuss f Nüsse;
    cherry Kirsche f Kirschen; roll Brötchen n Brötchen; pancake Pfannkuchen m Pfannkuchen;
    cucumber Gurke f Gurken"""
)
THINGS = read_nouns(
    """book Buch n Bücher; letter Brief m Briefe; newspaper Zeitung f Zeitungen;
    picture Bild n Bilder; table Tisch m Tische; chair Stuhl m Stühle; lamp Lampe f Lampen;
    bicycle Fahrrad n Fahrräder; car Auto n Autos; coat Mantel m Mäntel; dress Kleid n Kleider;
    shirt Hemd n Hemden; hat Hut m Hüte; bag Tasche f Taschen; cup Tasse f Tassen;
    key Schlüssel m Schlüssel; bottle Flasche f Flaschen; knife/knives Messer n Messer;
    spoon Löffel m Löffel; fork Gabel f Gabeln; plate Teller m Teller;
    umbrella Regenschirm m Regenschirme; mirror Spiegel m Spiegel; pillow Kissen n Kissen;
    blanket Decke f Decken; ring Ring m Ringe; suitcase Koffer m Koffer; camera Kamera f Kameras;
    telephone Telefon n Telefone; piano/pianos Klavier n Klaviere; guitar Gitarre f Gitarren;
    violin Geige f Geigen; ball Ball m Bälle; doll Puppe f Puppen; stamp Briefmarke f Briefmarken;
    pencil Bleistift m Bleistifte; flower Blume f Blumen; glass Glas n Gläser; basket Korb m Körbe;
    box Kiste f Kisten; carpet Teppich m Teppiche; candle Kerze f Kerzen; bed Bett n Betten;
    pot Topf m Töpfe; boat Boot n Boote; computer Computer m Computer"""
)
ADJECTIVES = {row[0]: make_adjective(*row) for row in read_rows("""big bigger groß größer;
    small smaller klein kleiner; old older alt älter; new newer neu neuer;
    cheap cheaper billig billiger; expensive more_expensive teuer teurer teur;
    beautiful more_beautiful schön schöner; ugly uglier hässlich hässlicher;
    heavy heavier schwer schwerer; light lighter leicht leichter; long longer lang länger;
    short shorter kurz kürzer; dark darker dunkel dunkler dunkl; modern more_modern modern moderner;
    strange stranger seltsam seltsamer; dirty dirtier schmutzig schmutziger; red redder rot röter;
    blue bluer blau blauer; green greener grün grüner; white whiter weiß weißer;
    black blacker schwarz schwärzer; yellow yellower gelb gelber;
    brown browner braun brauner""")}  # fmt: skip
COLORS = ("red", "blue", "green", "white", "black", "yellow", "brown")
STATES = read_phrases(
    """tired müde; sick krank; hungry hungrig; happy glücklich; sad traurig; curious neugierig;
    angry wütend; busy beschäftigt; nervous nervös; alone allein; healthy gesund;
    satisfied zufrieden; poor arm; rich reich"""
)
HANDLE = read_verbs(
    """buy bought kaufen gekauft; sell sold verkaufen verkauft; find found finden gefunden;
    photograph photographed fotografieren fotografiert; lose lost verlieren verloren;
    forget forgot vergessen vergessen vergiss; look_for looked_for suchen gesucht;
    steal stole stehlen gestohlen stiehl; borrow borrowed aus|leihen ausgeliehen;
    bring_along brought_along mit|bringen mitgebracht;
    give_back gave_back zurück|geben zurückgegeben gib; pick_up picked_up ab|holen abgeholt;
    repair repaired reparieren repariert; use used benutzen benutzt;
    describe described beschreiben beschrieben; draw drew zeichnen gezeichnet;
    hide hid verstecken versteckt; throw_away threw_away weg|werfen weggeworfen wirf;
    order ordered bestellen bestellt; pack_up packed_up ein|packen eingepackt;
    try_out tried_out aus|probieren ausprobiert; clean cleaned putzen geputzt;
    see saw sehen gesehen sieh"""
)
EAT = read_verbs(
    """eat ate essen gegessen iss; peel peeled schälen geschält;
    wash washed waschen gewaschen wäsch; cook cooked kochen gekocht; try tried probieren probiert;
    share shared teilen geteilt; sell sold verkaufen verkauft; order ordered bestellen bestellt"""
)
MEET = read_verbs(
    """visit visited besuchen besucht; call called an|rufen angerufen;
    meet met treffen getroffen triff; invite invited ein|laden eingeladen läd;
    understand understood verstehen verstanden; greet greeted begrüßen begrüßt;
    pick_up picked_up ab|holen abgeholt; see saw sehen gesehen sieh;
    look_for looked_for suchen gesucht; introduce introduced vor|stellen vorgestellt;
    laugh_at laughed_at aus|lachen ausgelacht"""
)
SERVE = read_verbs(
    """help helped helfen geholfen hilf; thank thanked danken gedankt;
    answer answered antworten geantwortet; trust trusted vertrauen vertraut;
    follow followed folgen +gefolgt; congratulate congratulated gratulieren gratuliert;
    listen_to listened_to zu|hören zugehört"""
)
JOURNEY = read_verbs(
    """travel traveled reisen +gereist; return returned zurück|kehren +zurückgekehrt;
    move moved um|ziehen +umgezogen; fly flew fliegen +geflogen"""
)
GO = read_verbs(
    """walk walked gehen +gegangen; drive drove fahren +gefahren fähr;
    run ran laufen +gelaufen läuf; hurry hurried eilen +geeilt; come came kommen +gekommen"""
)
STAY = read_verbs(
    """work worked arbeiten gearbeitet; sleep slept schlafen geschlafen schläf;
    wait waited warten gewartet; dance danced tanzen getanzt; sing sang singen gesungen;
    laugh laughed lachen gelacht; play played spielen gespielt; study studied lernen gelernt;
    shop shopped ein|kaufen eingekauft;
    fall_asleep fell_asleep ein|schlafen +eingeschlafen schläf"""
)
GIVE = read_verbs(
    """give gave geben gegeben gib; show showed zeigen gezeigt; send sent schicken geschickt;
    lend lent leihen geliehen; recommend recommended empfehlen empfohlen empfiehl;
    promise promised versprechen versprochen versprich"""
)
INTEND = read_verbs(
    """try tried versuchen versucht; promise promised versprechen versprochen versprich;
    hope hoped hoffen gehofft; forget forgot vergessen vergessen vergiss;
    decide decided beschließen beschlossen; plan planned planen geplant"""
)
KNOW = Verb(
    "know", "knows", "knew", "", "wissen", ("weiß", "weißt", "weiß", "wissen"), "gewusst", "haben"
)
MIND = {"know": KNOW} | read_verbs(
    """believe believed glauben geglaubt; say said sagen gesagt; hope hoped hoffen gehofft;
    write wrote schreiben geschrieben; claim claimed behaupten behauptet;
    fear feared befürchten befürchtet"""
)
LIVE = make_verb("live", "lived", "wohnen", "gewohnt")
LAY = make_verb("lay", "laid", "legen", "gelegt")
READ = make_verb("read", "read", "lesen", "gelesen", "lies")
PAY = make_verb("pay", "paid", "bezahlen", "bezahlt")
MANNERS = read_phrases("""alone allein; in_secret heimlich; again wieder; with_pleasure gern;
    together_with_friends zusammen_mit_Freunden""")
VEHICLES = read_phrases(
    """train mit_dem_Zug; car mit_dem_Auto; bus mit_dem_Bus; ship mit_dem_Schiff; taxi mit_dem_Taxi;
    motorcycle mit_dem_Motorrad"""
)
CITIES = read_phrases(
    """Berlin Berlin; Hamburg Hamburg; Munich München; Vienna Wien; Cologne Köln; Zurich Zürich;
    Rome Rom; Paris Paris; London London; Prague Prag; Venice Venedig; Lisbon Lissabon;
    Athens Athen; Brussels Brüssel; Milan Mailand; Warsaw Warschau; Moscow Moskau; Geneva Genf;
    Nuremberg Nürnberg; Copenhagen Kopenhagen"""
)


def _place(en: str, en_at: str, de: str, gender: str, at: str, to: str) -> Place:
    return Place(
        _noun(en, de, gender, ""), Phrase(f"{en_at} the {en}", at), Phrase(f"to the {en}", to)
    )


PLACES = {row[0]: _place(*row) for row in read_rows("""park in Park m im_Park in_den_Park;
    beach on Strand m am_Strand zum_Strand; garden in Garten m im_Garten in_den_Garten;
    school in Schule f in_der_Schule in_die_Schule; city in Stadt f in_der_Stadt in_die_Stadt;
    kitchen in Küche f in_der_Küche in_die_Küche;
    library in Bibliothek f in_der_Bibliothek in_die_Bibliothek;
    museum in Museum n im_Museum ins_Museum;
    restaurant in Restaurant n im_Restaurant ins_Restaurant;
    theater in Theater n im_Theater ins_Theater; church in Kirche f in_der_Kirche in_die_Kirche;
    hospital in Krankenhaus n im_Krankenhaus ins_Krankenhaus; office in Büro n im_Büro ins_Büro;
    hotel in Hotel n im_Hotel ins_Hotel; village in Dorf n im_Dorf ins_Dorf;
    station at Bahnhof m am_Bahnhof zum_Bahnhof; airport at Flughafen m am_Flughafen zum_Flughafen;
    market at Markt m auf_dem_Markt auf_den_Markt;
    forest in Wald m im_Wald in_den_Wald""")}  # fmt: skip
OPENING = ("library", "museum", "restaurant", "theater", "hotel", "market", "office", "church")
CARRIERS = read_nouns("train Zug m Züge; bus Bus m Busse; ship Schiff n Schiffe")
SHOWS = read_nouns(
    """movie Film m Filme; concert Konzert n Konzerte; lecture Vorlesung f Vorlesungen;
    game Spiel n Spiele; meeting Besprechung f Besprechungen; party Feier f Feiern;
    exhibition Ausstellung f Ausstellungen"""
)
TEXTS = read_nouns(
    """chapter Kapitel n Kapitel; page Seite f Seiten; story Geschichte f Geschichten;
    poem Gedicht n Gedichte; letter Brief m Briefe; sentence Satz m Sätze"""
)
INDICES = read_phrases(
    """the_rent die_Miete; the_price_of_gold der_Goldpreis; unemployment die_Arbeitslosigkeit;
    the_population die_Bevölkerung; inflation die_Inflation; the_interest_rate der_Zinssatz;
    the_gas_price der_Benzinpreis; the_price_of_electricity der_Strompreis; profit der_Gewinn;
    demand die_Nachfrage"""
)
CHANGES = read_phrases("rose gestiegen; fell gesunken")
SIDES = read_phrases("on auf; under unter; next_to neben; behind hinter; in_front_of vor")
DIMENSIONS = read_phrases("long lang; wide breit; high hoch; thick dick")
DAYS = read_phrases(
    """Monday Montag; Tuesday Dienstag; Wednesday Mittwoch; Thursday Donnerstag; Friday Freitag;
    Saturday Samstag; Sunday Sonntag"""
)
MONTHS = read_phrases(
    """January Januar; February Februar; March März; April April; May Mai; June Juni; July Juli;
    August August; September September; October Oktober; November November; December Dezember"""
)
PERIODS = read_phrases("days Tagen; weeks Wochen; months Monaten; years Jahren")
NOW = read_phrases(
    """today heute; every_day jeden_Tag; every_week jede_Woche; this_week diese_Woche;
    in_the_evening am_Abend; in_the_morning am_Morgen; at_noon am_Mittag; at_night in_der_Nacht;
    every_month jeden_Monat; on_the_weekend am_Wochenende"""
)
PAST = read_phrases(
    """yesterday gestern; last_week letzte_Woche; last_month letzten_Monat; last_year letztes_Jahr;
    the_day_before_yesterday vorgestern; yesterday_evening gestern_Abend;
    this_morning heute_Morgen"""
)
SOON = read_phrases(
    """tomorrow morgen; next_week nächste_Woche; next_month nächsten_Monat; next_year nächstes_Jahr;
    the_day_after_tomorrow übermorgen; tomorrow_evening morgen_Abend; tonight heute_Abend"""
)

_DEMONSTRATIVE = {"m": ("er", "en", "em"), "f": ("e", "e", "er"), "n": ("es", "es", "em")}
_DEFINITE = {"m": ("der", "den", "dem"), "f": ("die", "die", "der"), "n": ("das", "das", "dem")}
_EIN_ENDING = {"m": ("", "en", "em"), "f": ("e", "e", "er"), "n": ("", "", "em")}
_WEAK_ENDING = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en")}
_MIXED_ENDING = {"m": ("er", "en", "en"), "f": ("e", "e", "en"), "n": ("es", "es", "en")}


def determiner(word: str, gender: str, case: int) -> str:
    """Return a determiner that agrees with a singular noun.

    `word` is `der`, `dies`, or one that inflects as `ein` does (kein, mein, dein ...).
    """
    if word == "der":
        return _DEFINITE[gender][case]
    return word + (_DEMONSTRATIVE if word == "dies" else _EIN_ENDING)[gender][case]


def noun_phrase(word: str, noun: Noun, case: int, adjective: Adjective | None = None) -> str:
    """Return determiner, adjective and singular noun: einen alten Mantel, dem alten Studenten."""
    endings = _WEAK_ENDING if word in ("der", "dies") else _MIXED_ENDING
    described = f" {adjective.stem}{endings[noun.gender][case]}" if adjective else ""
    head = noun.plural if noun.weak and case != NOMINATIVE else noun.de
    return f"{determiner(word, noun.gender, case)}{described} {head}"


def plural_phrase(word: str, noun: Noun, adjective: Adjective | None = None) -> str:
    """Return the nominative or accusative plural after `word`: die alten Hunde.

    `word` is die, diese, meine, keine, zwei, viele, or nothing.
    """
    weak = word.endswith("e") and word != "viele"
    described = f"{adjective.stem}{'en' if weak else 'e'}" if adjective else ""
    return " ".join(part for part in (word, described, noun.plural) if part)


def article_en(words: str) -> str:
    """`words` after the English indefinite article."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
