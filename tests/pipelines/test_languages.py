"""By default no language loses a mark: the vocabulary, its exports, and where sentences end."""

import unicodedata

import pyarrow as pa
import pytest
import regex
from tokenizers import Tokenizer

from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from pipelines.stages import VOCABULARY
from pipelines.stages.corpus.cleaning import SENTENCE_TERMINATORS, split_sentences
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import (
    choose_alphabet,
    count_words,
    learn_tokens,
    merged_share,
    unknown_characters,
)

# Words that only their marks tell apart, and a sentence around them.
LANGUAGES = {
    "hindi": ("में मैं की के", "मैं घर में की के बीच हूँ।"),
    "bengali": ("দিন দান", "এই দিন দান করি।"),
    "tamil": ("கல் கால்", "கல் மேல் கால் வை."),
    "telugu": ("పాలు పూలు", "పాలు పూలు తెచ్చాను."),
    "thai": ("ที่ ทุ ทิ", "ที่ ทุ ทิ อยู่ที่นี่"),
    "khmer": ("តា តី", "តា តី ទៅ។"),
    "burmese": ("စာ စီ", "စာ စီ ဖတ်။"),
    "japanese": ("プログラム フロクラム", "プログラムとフロクラムは違う。"),
    "korean": ("한국 학국", "한국 학국 사람"),
    "vietnamese": ("ma má mà mạ", "má mà mạ ma không giống nhau."),
    "russian": ("мой мои", "мой и мои не одно и то же."),
    "ukrainian": ("їжа іжа", "їжа це не іжа."),
    "greek": ("νόμος νομός", "ο νόμος και ο νομός."),
    "hebrew": ("שָׁלוֹם שִׁלוּם", "שָׁלוֹם ולא שִׁלוּם."),
    "arabic": ("كَتَبَ كُتُب", "كَتَبَ كُتُب كثيرة."),
    "german": ("schon schön", "Das ist schon schön."),
    "polish": ("laska łaska", "laska i łaska."),
    "turkish": ("on ön", "on değil ön."),
    "spanish": ("ano año", "Un año no es un ano."),
    "tibetan": ("ཀི ཀུ", "ཀི དང་ ཀུ།"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> WordPieceTokenizer:
    """Learned with the default settings from all these languages."""
    settings = VocabularySettings()
    sentences = [text for words, sentence in LANGUAGES.values() for text in (words, sentence)] * 3
    shard = tmp_path_factory.mktemp("corpus") / "train-00000.arrow"
    table = pa.table({"source": ["all"], "sentences": pa.array([sentences])})
    with pa.ipc.new_file(str(shard), table.schema) as writer:
        writer.write_table(table)
    counts = count_words(shard, settings.normalization)
    alphabet = choose_alphabet(counts, coverage=1.0, limit=1_000)
    fixed = [*SPECIAL_TOKENS, *alphabet.first, *alphabet.continuing]
    tokens = learn_tokens(counts, settings.model_copy(update={"size": 1_500}), fixed)
    return WordPieceTokenizer(tokens, settings.normalization)


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_that_differ_in_marks_stay_different(tokenizer, language):
    words = LANGUAGES[language][0].split()
    ids = [tuple(tokenizer.encode(word)) for word in words]
    assert len(set(ids)) == len(words)
    assert all(tokenizer.unk_id not in each for each in ids)


def test_the_report_tells_how_many_words_lose_what_tells_them_apart():
    words = {"में", "मैं", "की", "के", "घर"}
    for strips, merged in ((False, 0), (True, 0.2)):  # BERT leaves spacing marks, as of की
        normalization = VocabularySettings(strip_accents=strips).normalization
        assert merged_share(words, normalization) == pytest.approx(merged)
        assert merged_share(set(), normalization) == 0
    told = VOCABULARY.headline({"size": 8_192, "heldout": {"merged_share": 0.4}})
    assert told == "8,192 tokens; strip_accents merges 40.0% of the different words"
    too_long = ", mostly in words of more than 100 characters: separate words by blanks"
    for left_out, long_words, remedy in (
        (856, 0.01, ": raise max_characters"), (856, 0.06, too_long), (0, 0, ""),
    ):  # fmt: skip
        heldout = {"unknown_character_share": 0.0725, "long_word_character_share": long_words}
        figures = {"characters_left_out": left_out, "heldout": heldout}
        told = VOCABULARY.headline({"size": 3_000, **figures})
        assert told == (
            f"3,000 tokens, [UNK] stands for 7.2% of the characters of held-out text{remedy}"
        )
    told = VOCABULARY.headline({"size": 30_522, "strips_accents": True})
    assert told == "30,522 tokens; texts lose accents and other marks"


def test_a_long_word_counts_with_all_its_characters(tokenizer):
    chunks = {"ที่นี่": 50, "ที่" * 40: 1, "ж\u4e00": 50, "☃нет": 10}  # 560 letters
    assert unknown_characters(chunks, tokenizer) == {
        "unknown_character_share": round(210 / 560, 6),
        "long_word_character_share": round(120 / 560, 6),
    }


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_every_reader_of_the_saved_folder_gives_the_same_ids(tokenizer, tmp_path, form):
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path)
    library, transformers = (
        Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
        AutoTokenizer.from_pretrained(tmp_path),
    )
    ours = WordPieceTokenizer.from_directory(tmp_path)
    assert ours.normalization == tokenizer.normalization
    assert transformers.model_input_names == ["input_ids", "token_type_ids", "attention_mask"]
    for _, sentence in LANGUAGES.values():
        text = unicodedata.normalize(form, sentence)
        ids = tokenizer.encode(unicodedata.normalize("NFC", sentence))
        assert ours.encode(text) == ids
        assert library.encode(text, add_special_tokens=False).ids == ids
        assert transformers(text, add_special_tokens=False).input_ids == ids


@pytest.mark.parametrize(
    "text",
    [
        "ကျွန်တော် သွားသည်။ သူ လာသည်။ ငါ စားသည်။",  # Burmese
        "ខ្ញុំទៅ។ គាត់មក។ យើងញ៉ាំ។",  # Khmer
        "Ես գնում եմ։ Նա գալիս է։ Մենք ուտում ենք։",  # Armenian
        "እኔ እሄዳለሁ። እሱ ይመጣል። እንበላለን።",  # Amharic
        "བཀྲ་ཤིས། བདེ་ལེགས། ཁམས་བཟང་།",  # Tibetan
    ],
)
def test_three_sentences_are_three(text):
    sentences = split_sentences(text)
    assert len(sentences) == 3
    assert " ".join(sentences) == text


def test_the_terminators_are_unicode_s():
    """Sentence_Break=STerm (UAX 29) of the scripts that blingfire leaves alone; Tibetan's shad."""
    property_of = regex.compile(r"\p{Sentence_Break=STerm}")
    assert all(property_of.match(each) for each in SENTENCE_TERMINATORS if each not in "།༎")
    for each in "։۔।॥။፧።៕។᠃᠉᱾᱿꯫꘎꘏꛳꛷꣎꣏":
        assert each in SENTENCE_TERMINATORS
