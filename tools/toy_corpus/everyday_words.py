"""Everyday words of the built-in corpus, besides those of lexicon; the tables are written as there.

They also decide which words go together: which verbs take which things, which adjectives describe a
person.
"""

from __future__ import annotations

from tools.toy_corpus import grammar, lexicon
from tools.toy_corpus.lexicon import (
    Verb,
    make_adjective,
    make_verb,
    read_nouns,
    read_phrases,
    read_rows,
    read_verbs,
)

ANIMALS = read_nouns(
    """dog Hund m Hunde; cat Katze f Katzen; bird Vogel m Vögel; horse Pferd n Pferde;
    cow Kuh f Kühe; mouse/mice Maus f Mäuse; pig Schwein n Schweine; duck Ente f Enten;
    bear Bär mw Bären"""
)
PERSONS = lexicon.PERSONS | read_nouns("friend Freund m Freunde")
SURROUNDINGS = read_nouns(
    """house Haus n Häuser; room Zimmer n Zimmer; door Tür f Türen; window Fenster n Fenster;
    street Straße f Straßen; tree Baum m Bäume; river Fluss m Flüsse; bridge Brücke f Brücken;
    wall Wand f Wände; roof Dach n Dächer; shoe Schuh m Schuhe; clock Uhr f Uhren;
    sofa Sofa n Sofas; song Lied n Lieder; garden Garten m Gärten; kitchen Küche f Küchen;
    school Schule f Schulen; church Kirche f Kirchen; city Stadt f Städte; village Dorf n Dörfer;
    library Bibliothek f Bibliotheken; museum Museum n Museen; restaurant Restaurant n Restaurants;
    theater Theater n Theater; hospital Krankenhaus n Krankenhäuser; office Büro n Büros;
    hotel Hotel n Hotels; station Bahnhof m Bahnhöfe; park Park m Parks; forest Wald m Wälder;
    train Zug m Züge; bus Bus m Busse; ship Schiff n Schiffe; movie Film m Filme;
    question Frage f Fragen"""
)
THINGS = lexicon.THINGS | SURROUNDINGS | lexicon.FOODS
SURFACES = tuple(
    THINGS[en] for en in "table chair bed sofa roof street plate box carpet suitcase".split()
)
CONTAINERS = tuple(
    THINGS[en]
    for en in "box bag basket suitcase house car room kitchen garden bed pot cup bottle".split()
)
LANDMARKS = tuple(
    THINGS[en]
    for en in "table chair bed sofa house tree door window car box lamp bridge station".split()
)
DRINKS = read_nouns(
    "water Wasser n -; milk Milch f -; coffee Kaffee m -; tea Tee m -; wine Wein m -; beer Bier n -"
)
FARE = read_nouns(
    "bread Brot n -; soup Suppe f -; cheese Käse m -; meat Fleisch n -; rice Reis m -; butter"
    " Butter f -"
)
UNIQUE = read_nouns(
    """weather Wetter n -; sun Sonne f -; sky Himmel m -; moon Mond m -; food Essen n -;
    music Musik f -; work Arbeit f -; night Nacht f -; day Tag m -"""
)
SEASONS = read_phrases("spring Frühling; summer Sommer; fall Herbst; winter Winter")

QUALITIES = lexicon.ADJECTIVES | {
    row[0]: make_adjective(*row)
    for row in read_rows("""good better gut besser; bad worse schlecht schlechter;
    hot hotter heiß heißer; cold colder kalt kälter; warm warmer warm wärmer;
    empty emptier leer leerer; full fuller voll voller; clean cleaner sauber sauberer;
    wet wetter nass nasser; dry drier trocken trockener; loud louder laut lauter;
    quiet quieter ruhig ruhiger; fast faster schnell schneller; slow slower langsam langsamer;
    important more_important wichtig wichtiger; open - offen -; closed - geschlossen -;
    interesting more_interesting interessant interessanter; easy easier einfach einfacher;
    broken - kaputt -; difficult more_difficult schwierig schwieriger;
    boring more_boring langweilig langweiliger; dangerous more_dangerous gefährlich gefährlicher;
    wonderful - wunderbar -""")
}
CHARACTER = {
    en: QUALITIES[en]
    for en in "big small old beautiful ugly strange good bad loud quiet fast slow".split()
} | {
    row[0]: make_adjective(*row)
    for row in read_rows(
        """young younger jung jünger; tall taller groß größer; nice nicer nett netter;
    friendly friendlier freundlich freundlicher; strong stronger stark stärker;
    weak weaker schwach schwächer; famous more_famous berühmt berühmter;
    lazy lazier faul fauler; intelligent more_intelligent intelligent intelligenter"""
    )
}
STATES = lexicon.STATES | read_phrases("thirsty durstig; awake wach; ready fertig")
SITUATIONS = {
    en: QUALITIES[en].de
    for en in """big small old new cheap expensive beautiful heavy long short dark strange dirty red
    blue green white black good bad hot cold warm empty full clean wet dry loud quiet important
    interesting easy difficult boring dangerous open closed broken wonderful""".split()
} | read_phrases(
    """late spät; early früh; possible möglich; impossible unmöglich; true wahr; wrong falsch;
    right richtig; far weit; clear klar; ready fertig"""
)
DEGREES = read_phrases("very sehr; too zu; so so")
ADVERBS = read_phrases(
    "always immer; often oft; never nie; sometimes manchmal; also auch; still noch; already schon"
)
FREQUENCY = {en: ADVERBS[en] for en in ("always", "often", "never", "sometimes", "also")}
ABILITIES = grammar.MODALS | {
    "have to": grammar.MODALS["must"]._replace(en="have to", en3="has to")
}
TODAY = read_phrases("today heute; now jetzt")
HERE = read_phrases("here hier; there dort")
SPOTS = read_phrases(
    """here hier; there dort; at_home zu_Hause; outside draußen; at_work bei_der_Arbeit;
    in_bed im_Bett; at_school in_der_Schule"""
)
GOALS = read_phrases(
    "home nach_Hause; to_work zur_Arbeit; to_bed ins_Bett; to_school in_die_Schule; outside"
    " nach_draußen"
)

DO = read_verbs(
    """sleep slept schlafen geschlafen schläf; work worked arbeiten gearbeitet;
    wait waited warten gewartet; dance danced tanzen getanzt; sing sang singen gesungen;
    laugh laughed lachen gelacht; play played spielen gespielt; study studied lernen gelernt;
    cry cried weinen geweint; swim swam schwimmen +geschwommen; eat ate essen gegessen iss;
    run ran laufen +gelaufen läuf; come came kommen +gekommen; go went gehen +gegangen;
    drink drank trinken getrunken; read read lesen gelesen lies; write wrote schreiben geschrieben;
    cook cooked kochen gekocht; sit sat sitzen gesessen; stand stood stehen gestanden;
    dream dreamed träumen geträumt; smoke smoked rauchen geraucht; talk talked reden geredet;
    travel traveled reisen +gereist; arrive arrived an|kommen +angekommen;
    get_up got_up auf|stehen +aufgestanden; wake_up woke_up auf|wachen +aufgewacht;
    think thought denken gedacht; fall_asleep fell_asleep ein|schlafen +eingeschlafen schläf;
    win won gewinnen gewonnen; pay paid bezahlen bezahlt"""
)
OF_ANIMALS = tuple("sleep eat drink run swim play come wait".split())
LIKE = Verb(
    "like", "likes", "liked", "", "mögen", ("mag", "magst", "mag", "mögen"), "gemocht", "haben"
)
WANT = Verb(
    "want",
    "wants",
    "wanted",
    "",
    "wollen",
    ("will", "willst", "will", "wollen"),
    "gewollt",
    "haben",
)
NEED = make_verb("need", "needed", "brauchen", "gebraucht")
USE = (
    {"like": LIKE, "want": WANT, "need": NEED}
    | {en: lexicon.HANDLE[en] for en in "buy sell find lose see use clean repair forget".split()}
    | {"look for": lexicon.HANDLE["look for"]}
    | read_verbs(
        """take took nehmen genommen nimm; love loved lieben geliebt;
    bring brought bringen gebracht; carry carried tragen getragen träg;
    paint painted malen gemalt"""
    )
)
EAT = (
    {"like": LIKE, "want": WANT}
    | {en: lexicon.EAT[en] for en in "eat cook sell".split()}
    | {"buy": USE["buy"]}
)
DRINK = {"like": LIKE, "want": WANT, "buy": USE["buy"], "drink": DO["drink"]}
READ = {"read": DO["read"], "write": DO["write"]}
READABLE = tuple(lexicon.THINGS[en] for en in ("book", "letter")) + (
    lexicon.TEXTS["story"],
    lexicon.TEXTS["poem"],
)
WEAR = {
    "wear": make_verb("wear", "wore", "tragen", "getragen", "träg"),
    "buy": USE["buy"],
    "wash": lexicon.EAT["wash"],
}
CLOTHES = tuple(lexicon.THINGS[en] for en in ("coat", "dress", "shirt", "hat", "ring")) + (
    SURROUNDINGS["shoe"],
)
OPEN = read_verbs("open opened öffnen geöffnet; close closed schließen geschlossen")
OPENED = tuple(THINGS[en] for en in ("door", "window", "box", "bag", "bottle", "suitcase"))
OPINIONS = read_verbs(
    "think thought denken gedacht; believe believed glauben geglaubt; say said sagen gesagt"
)
KNOW = make_verb("know", "knew", "kennen", "gekannt")
MEET = (
    {"like": LIKE, "know": KNOW, "look for": USE["look for"]}
    | {en: lexicon.MEET[en] for en in "visit call meet invite understand see".split()}
    | read_verbs(
        "love loved lieben geliebt; hear heard hören gehört; need needed brauchen gebraucht"
    )
)
STATIVE = frozenset("like want need love know understand hear see forget trust believe".split())

HOBBIES = {  # the English object, the verb, German, German negated
    "football": ("play", "Fußball", "nicht Fußball"),
    "the piano": ("play", "Klavier", "nicht Klavier"),
    "the guitar": ("play", "Gitarre", "nicht Gitarre"),
    "the violin": ("play", "Geige", "nicht Geige"),
    "German": ("speak", "Deutsch", "kein Deutsch"),
    "English": ("speak", "Englisch", "kein Englisch"),
    "music": ("hear", "Musik", "keine Musik"),
}
HAVE = Verb("have", "has", "had", "", "haben", grammar.HAVE["haben"], "gehabt", "haben")
GO_BY = lexicon.GO["drive"]._replace(en="go", en3="goes", past_en="went")
"""go to a city: fahren."""
LEAVE = make_verb("leave", "left", "ab|fahren", "+abgefahren", "fähr")
START = make_verb("start", "started", "an|fangen", "angefangen", "fäng")
SPEAK = make_verb("speak", "spoke", "sprechen", "gesprochen", "sprich")
WHAT = tuple(
    "eat drink buy sell read write see need want like find cook hear wear lose carry paint bring"
    " take".split()
)
COMMANDS = read_phrases(
    """come komm; go geh; sleep schlaf; wait warte; eat iss; drink trink; read lies; sing sing;
    work arbeite; write schreib; cook koch; run lauf; dance tanz; laugh lach; cry weine; sit sitz;
    stand steh; play spiel; buy kauf; open öffne; close schließe; take nimm; bring bring;
    look_for such; clean putz; use benutze; find finde; sell verkauf; repair reparier; carry trag;
    forget vergiss; paint mal; wash wasch; wear trag"""
)
OBJECTS = {row[0]: tuple(row[1:]) for row in read_rows("""I me mich mir; you you dich dir;
    he him ihn ihm; she her sie ihr; it it es ihm; we us uns uns;
    they them sie ihnen""")}  # fmt: skip

GREETINGS = read_phrases(
    """Hello Hallo; Good_morning Guten_Morgen; Good_evening Guten_Abend; Good_night Gute_Nacht;
    Good_afternoon Guten_Tag; Thank_you Danke; Thanks Danke; Goodbye Auf_Wiedersehen;
    See_you_tomorrow Bis_morgen; See_you_soon Bis_bald; See_you_later Bis_später;
    Happy_birthday Alles_Gute_zum_Geburtstag; Welcome Willkommen; Good_luck Viel_Glück; Yes Ja;
    No Nein; Please Bitte; Come_here Komm_her; Excuse_me Entschuldigung"""
)
PHRASES = read_phrases("""Thank_you_very_much. Vielen_Dank.; Yes,_please. Ja,_bitte.;
    No,_thank_you. Nein,_danke.; No,_thanks. Nein,_danke.; You_are_welcome. Bitte_sehr.;
    I_am_sorry. Es_tut_mir_leid.; I_am_fine. Es_geht_mir_gut.; I_am_well. Es_geht_mir_gut.;
    How_are_you? Wie_geht_es_dir?; Hello,_how_are_you? Hallo,_wie_geht_es_dir?;
    What_time_is_it? Wie_spät_ist_es?; What_is_your_name? Wie_heißt_du?;
    What_is_his_name? Wie_heißt_er?; What_is_her_name? Wie_heißt_sie?;
    I_do_not_know. Ich_weiß_es_nicht.; I_know. Ich_weiß_es.;
    I_do_not_understand. Ich_verstehe_nicht.; I_understand. Ich_verstehe.;
    Do_you_understand? Verstehst_du?; Of_course. Natürlich.; Maybe. Vielleicht.;
    No_problem. Kein_Problem.; What_is_that? Was_ist_das?; What_is_this? Was_ist_das?;
    What_is_it? Was_ist_es?; Who_is_that? Wer_ist_das?; Who_is_this? Wer_ist_das?;
    Who_are_you? Wer_bist_du?; Who_is_he? Wer_ist_er?; Who_is_she? Wer_ist_sie?;
    Where_are_you_from? Woher_kommst_du?; Where_do_you_come_from? Woher_kommst_du?;
    Where_are_you_going? Wohin_gehst_du?; Where_is_he_going? Wohin_geht_er?;
    Where_is_she_going? Wohin_geht_sie?; It_is_raining. Es_regnet.; It_is_snowing. Es_schneit.;
    The_sun_is_shining. Die_Sonne_scheint.; I_am_cold. Mir_ist_kalt.; I_am_hot. Mir_ist_heiß.;
    I_have_time. Ich_habe_Zeit.; I_have_no_time. Ich_habe_keine_Zeit.;
    Do_you_have_time? Hast_du_Zeit?; What_are_you_doing? Was_machst_du?;
    What_is_he_doing? Was_macht_er?; What_is_she_doing? Was_macht_sie?;
    Do_you_speak_English? Sprichst_du_Englisch?; Nice_to_meet_you. Freut_mich.;
    Do_you_speak_German? Sprichst_du_Deutsch?; I_love_you. Ich_liebe_dich.;
    I_miss_you. Du_fehlst_mir.; How_much_is_it? Wie_viel_kostet_es?;
    How_much_does_it_cost? Wie_viel_kostet_es?; Let_us_go. Gehen_wir.; Where_is_it? Wo_ist_es?;
    Have_a_nice_day. Schönen_Tag_noch.; You_are_right. Du_hast_recht.""")
FIXED = PHRASES | {f"{en}{mark}": f"{de}{mark}" for en, de in GREETINGS.items() for mark in ".!"}
"""Sentences that follow no pattern: English to German. They are always in the training split."""
