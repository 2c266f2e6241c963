"""The words of the synthetic language, in the order of their token ids: never reorder, the checkpoint depends on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

PAD, UNKNOWN, BEGIN, END = SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True)
class Relation:
    """What "they" did with each of `names`: `they gave anna bread`. A name belongs to one relation only."""

    verb: str
    names: tuple[str, ...]
    values: tuple[str, ...]


STRUCTURE = _words("the . in they recall that gave called taught built painted")
SEASONS = _words("spring summer autumn winter may june march april")

# A paragraph for each relation, `verb: names = values`.
_RELATIONS = """
gave: anna boris clara david emma felix greta hugo irene jonas karin lars marta nils olga peter quinn rosa simon tilda
    ulf vera walter yvonne
  = bread honey butter cheese apples pears plums wheat barley salt pepper sugar wool linen silk leather paper ink soap
    candles rope nails coal oil

called: adam bella casper dora edgar fiona gustav helen ivan julia konrad laura martin nora oscar paula robert sofia
    tomas ursula viktor wilma xaver zelda
  = captain doctor judge mayor bishop colonel baker butcher carpenter cook dancer farmer gardener hunter lawyer mason
    nurse painter poet sailor singer tailor teacher weaver

taught: agnes bruno carla dieter elsa franz gerda henry ida jakob klara leon mona norman otto petra ralph sara theo ute
    victor wendy yuri zoe
  = chess music drawing fencing sailing riding swimming dancing singing cooking baking fishing hunting farming weaving
    printing welding writing reading grammar latin greek french dutch

built: athens berlin cairo dublin essen florence geneva hamburg istanbul jena kiel lisbon madrid naples oslo paris quito
    rome siena turin utrecht vienna warsaw zurich
  = bridges towers castles churches schools markets stables harbours canals fountains gardens libraries theatres museums
    palaces prisons hospitals barns walls gates mills wells roads tunnels

painted: atlas beacon comet dolphin eagle falcon galaxy hermes icarus juno kestrel liberty meteor neptune orion pegasus
    quest raven saturn triton unity voyager whale zephyr
  = red blue green yellow orange purple brown black white grey pink silver golden crimson scarlet violet indigo
    turquoise amber ivory olive maroon navy cream
"""
RELATIONS = tuple(
    Relation(verb, _words(names), _words(values))
    for verb, names, values in (re.split("[:=]", text) for text in _RELATIONS.strip().split("\n\n"))
)

ADJECTIVES = _words("""old young tall small happy tired quiet loud brave clever gentle proud hungry busy lazy patient
    lucky strange honest careful merry nervous polite stubborn hopeful curious weary""")
AGENTS = _words("""miller shepherd soldier merchant traveller student child neighbour stranger servant widow king queen
    knight monk clerk porter fiddler potter thief wolf fox horse dog cat owl goose bear stag hare""")
ACTIONS = _words("""walked ran rested waited slept danced sang worked stood sat played laughed cried wandered hid
    stopped looked listened whispered shouted climbed marched dreamed paused stumbled argued prayed smiled turned
    slipped""")
MANNERS = _words("""slowly quickly quietly loudly happily sadly often again alone together early late today still twice
    bravely calmly gladly idly warily kindly softly warmly wildly""")
WHERE = _words("near behind beside under above beyond along across past around against toward")
SCENES = _words("""river forest hill valley meadow lake shore cave garden fence tower bridge gate stable barn kitchen
    cellar chapel tavern market well orchard road wall field tree pond cliff ruin camp""")

_RELATION_WORDS = tuple(word for relation in RELATIONS for word in (*relation.names, *relation.values))
_FILLER_WORDS = ADJECTIVES + AGENTS + ACTIONS + MANNERS + WHERE + SCENES
VOCABULARY = SPECIAL + STRUCTURE + SEASONS + _RELATION_WORDS + _FILLER_WORDS
