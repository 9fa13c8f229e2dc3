"""Writes the novels in assets/text from the text below DTOPP_DATA: all parts of each book, in order.

    novels-train, novels-validation   18 short books, for the quick start and tests
    lab-train, lab-validation         all books, for configs/lab.yaml; validation is of whole books

In 19 books, a blank line follows each printed line or page: `whole_paragraphs` joins those. Byte order marks are dropped.
The rest is unchanged. Each book was published before 1930, and its author died before 1956. The script also writes the table
of books in assets/CREDITS.md. The bytes depend on the version of libzstd.

Usage: DTOPP_DATA=FOLDER make_sample_text.py
"""

import collections
import ctypes
import ctypes.util
import json
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
AUTHORS = {
    "Barclay": "Florence L. Barclay (1862–1921)",
    "Bennet": "Arnold Bennett (1867–1931)",
    "Blackmore": "R. D. Blackmore (1825–1900)",
    "Braddon": "Mary Elizabeth Braddon (1835–1915)",
    "Burnett": "Frances Hodgson Burnett (1849–1924)",
    "Cbronte": "Charlotte Brontë (1816–1855)",
    "Chesterton": "G. K. Chesterton (1874–1936)",
    "Conrad": "Joseph Conrad (1857–1924)",
    "Corelli": "Marie Corelli (1855–1924)",
    "Dickens": "Charles Dickens (1812–1870)",
    "Doyle": "Arthur Conan Doyle (1859–1930)",
    "Eliot": "George Eliot (1819–1880)",
    "Ford": "Ford Madox Ford (1873–1939)",
    "Galsworthy": "John Galsworthy (1867–1933)",
    "Gaskell": "Elizabeth Gaskell (1810–1865)",
    "Gissing": "George Gissing (1857–1903)",
    "Haggard": "H. Rider Haggard (1856–1925)",
    "Hardy": "Thomas Hardy (1840–1928)",
    "James": "Henry James (1843–1916)",
    "Kipling": "Rudyard Kipling (1865–1936)",
    "Lawrence": "D. H. Lawrence (1885–1930)",
    "Lee": "Vernon Lee (1856–1935)",
    "Lytton": "Edward Bulwer-Lytton (1803–1873)",
    "Meredith": "George Meredith (1828–1909)",
    "Morris": "William Morris (1834–1896)",
    "Schreiner": "Olive Schreiner (1855–1920)",
    "Stevenson": "Robert Louis Stevenson (1850–1894)",
    "Thackeray": "William Makepeace Thackeray (1811–1863)",
    "Trollope": "Anthony Trollope (1815–1882)",
    "Ward": "Mary Augusta Ward (1851–1920)",
    "Wcollins": "Wilkie Collins (1824–1889)",
    "Woolf": "Virginia Woolf (1882–1941)",
}
# By id, which names the author, a word of the title, and a year (of an edition for some). Clara Vaughan appeared
# without its author's name.
TITLES = {
    "Anon_Clara_1864": "Clara Vaughan",
    "Barclay_Ladies_1917": "The White Ladies of Worcester",
    "Barclay_Postern_1911": "Through the Postern Gate",
    "Barclay_Rosary_1909": "The Rosary",
    "Bennet_Babylon_1902": "The Grand Babylon Hotel",
    "Bennet_Helen_1910": "Helen with the High Hand",
    "Blackmore_Erema_1877": "Erema",
    "Blackmore_Lorna_1869": "Lorna Doone",
    "Blackmore_Springhaven_1887": "Springhaven",
    "Braddon_Audley_1862": "Lady Audley's Secret",
    "Braddon_Phantom_1883": "Phantom Fortune",
    "Braddon_Quest_1871": "Fenton's Quest",
    "Burnett_Garden_1911": "The Secret Garden",
    "Burnett_Lord_1886": "Little Lord Fauntleroy",
    "Burnett_Princess_1905": "A Little Princess",
    "Cbronte_Jane_1847": "Jane Eyre",
    "Cbronte_Shirley_1849": "Shirley",
    "Cbronte_Villette_1853": "Villette",
    "Chesterton_Innocence_1911": "The Innocence of Father Brown",
    "Chesterton_Napoleon_1904": "The Napoleon of Notting Hill",
    "Chesterton_Thursday_1908": "The Man Who Was Thursday",
    "Conrad_Almayer_1895": "Almayer's Folly",
    "Conrad_Nostromo_1904": "Nostromo",
    "Conrad_Rover_1923": "The Rover",
    "Corelli_Innocent_1914": "Innocent",
    "Corelli_Romance_1886": "A Romance of Two Worlds",
    "Corelli_Satan_1895": "The Sorrows of Satan",
    "Dickens_Bleak_1853": "Bleak House",
    "Dickens_Expectations_1861": "Great Expectations",
    "Dickens_Oliver_1839": "Oliver Twist",
    "Doyle_Hound_1902": "The Hound of the Baskervilles",
    "Doyle_Lost_1912": "The Lost World",
    "Doyle_Micah_1889": "Micah Clarke",
    "Eliot_Adam_1859": "Adam Bede",
    "Eliot_Daniel_1876": "Daniel Deronda",
    "Eliot_Felix_1866": "Felix Holt",
    "Ford_Girl_1907": "An English Girl",
    "Ford_Post_1926": "Last Post",
    "Ford_Soldier_1915": "The Good Soldier",
    "Galsworthy_Man_1906": "The Man of Property",
    "Galsworthy_Saints_1919": "Saint's Progress",
    "Gaskell_Lovers_1863": "Sylvia's Lovers",
    "Gaskell_Ruth_1855": "Ruth",
    "Gaskell_Wives_1865": "Wives and Daughters",
    "Gissing_Unclassed_1884": "The Unclassed",
    "Gissing_Warburton_1903": "Will Warburton",
    "Gissing_Women_1893": "The Odd Women",
    "Haggard_Mines_1885": "King Solomon's Mines",
    "Haggard_She_1887": "She",
    "Haggard_Sheallan_1921": "She and Allan",
    "Hardy_Jude_1895": "Jude the Obscure",
    "Hardy_Madding_1874": "Far from the Madding Crowd",
    "James_Ambassadors_1903": "The Ambassadors",
    "James_Roderick_1875": "Roderick Hudson",
    "James_Tragic_1890": "The Tragic Muse",
    "Kipling_Captains_1896": "Captains Courageous",
    "Kipling_Kim_1901": "Kim",
    "Kipling_Light_1891": "The Light That Failed",
    "Lawrence_Peacock_1911": "The White Peacock",
    "Lawrence_Serpent_1926": "The Plumed Serpent",
    "Lawrence_Women_1920": "Women in Love",
    "Lee_Albany_1884": "The Countess of Albany",
    "Lee_Brown_1884": "Miss Brown",
    "Lee_Penelope_1903": "Penelope Brandling",
    "Lytton_Kenelm_1873": "Kenelm Chillingly",
    "Lytton_Novel_1853": "My Novel",
    "Lytton_What_1858": "What Will He Do with It?",
    "Meredith_Feverel_1859": "The Ordeal of Richard Feverel",
    "Meredith_Marriage_1895": "The Amazing Marriage",
    "Meredith_Richmond_1871": "The Adventures of Harry Richmond",
    "Morris_Roots_1890": "The Roots of the Mountains",
    "Morris_Water_1897": "The Water of the Wondrous Isles",
    "Morris_Wood_1894": "The Wood beyond the World",
    "Schreiner_Farm_1883": "The Story of an African Farm",
    "Schreiner_Trooper_1897": "Trooper Peter Halket of Mashonaland",
    "Stevenson_Arrow_1888": "The Black Arrow",
    "Stevenson_Catriona_1893": "Catriona",
    "Stevenson_Treasure_1883": "Treasure Island",
    "Thackeray_Esmond_1852": "The History of Henry Esmond",
    "Thackeray_Pendennis_1850": "Pendennis",
    "Thackeray_Virginians_1859": "The Virginians",
    "Trollope_Angel_1881": "Ayala's Angel",
    "Trollope_Phineas_1869": "Phineas Finn",
    "Trollope_Warden_1855": "The Warden",
    "Ward_Ashe_1905": "The Marriage of William Ashe",
    "Ward_Harvest_1920": "Harvest",
    "Ward_Milly_1881": "Milly and Olly",
    "Wcollins_Legacy_1889": "The Legacy of Cain",
    "Woolf_Lighthouse_1927": "To the Lighthouse",
    "Woolf_Night_1919": "Night and Day",
}
VALIDATION = ["Chesterton_Innocence_1911", "Gaskell_Lovers_1863", "Haggard_Sheallan_1921", "Lee_Penelope_1903"]
TRAIN = [book for book in TITLES if book not in VALIDATION]
SHORT_TRAIN = ["Braddon_Audley_1862", "Burnett_Garden_1911", "Cbronte_Jane_1847", "Chesterton_Thursday_1908",
               "Conrad_Nostromo_1904", "Dickens_Expectations_1861", "Doyle_Lost_1912", "Eliot_Adam_1859",
               "Gaskell_Wives_1865", "Haggard_She_1887", "Hardy_Madding_1874", "James_Ambassadors_1903", "Kipling_Kim_1901",
               "Stevenson_Treasure_1883", "Trollope_Warden_1855", "Wcollins_Legacy_1889"]
SHORT_VALIDATION = ["Chesterton_Innocence_1911", "Lee_Penelope_1903"]
LEVEL = 19
WINDOW = 27  # log2 of the distance that `zstd --long` looks back

zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
for function in ("ZSTD_getFrameContentSize", "ZSTD_decompress", "ZSTD_compress2", "ZSTD_compressBound"):
    getattr(zstd, function).restype = ctypes.c_size_t
zstd.ZSTD_createCCtx.restype = ctypes.c_void_p


def read(path):
    """The objects of a .jsonl.zst file with one frame that states its size."""
    compressed = path.read_bytes()
    text = ctypes.create_string_buffer(zstd.ZSTD_getFrameContentSize(compressed, ctypes.c_size_t(len(compressed))))
    got = zstd.ZSTD_decompress(text, ctypes.c_size_t(len(text)), compressed, ctypes.c_size_t(len(compressed)))
    assert got == len(text), path
    return [json.loads(line) for line in text.raw.decode().split("\n") if line]


def compress(text):
    context = ctypes.c_void_p(zstd.ZSTD_createCCtx())
    for parameter, value in {100: LEVEL, 101: WINDOW, 160: 1}.items():  # level, window, long-distance matching
        assert zstd.ZSTD_CCtx_setParameter(context, parameter, value) < 1 << 16
    packed = ctypes.create_string_buffer(zstd.ZSTD_compressBound(ctypes.c_size_t(len(text))))
    size = zstd.ZSTD_compress2(context, packed, ctypes.c_size_t(len(packed)), text, ctypes.c_size_t(len(text)))
    assert size < len(packed)
    return packed.raw[:size]


def word_counts(texts):
    """How often each word occurs; parts joined by hyphens are one word."""
    return collections.Counter(word for text in texts for word in re.findall(r"[a-z]+(?:-[a-z]+)*", text.lower()))


def starts_inside_sentence(text):
    return re.match(r"[(-]* ?[a-z]", text) is not None


def full_length(lines):
    """The length that a full line has with the next line's first word. None if the text is not in lines.

    At a break inside a sentence, the line was full. 95 % of those breaks reach this length."""
    breaks = sorted(len(line) + 1 + len(following.split()[0]) for line, following in zip(lines, lines[1:])
                    if starts_inside_sentence(following))
    in_lines = len(breaks) > len(lines) / 10 and breaks[len(breaks) * 95 // 100] < 90
    return breaks[len(breaks) // 20] if in_lines else None


def continues(paragraph, line, following, full):
    """Whether the line after a paragraph, which ends with `line`, belongs to it.

    Headings do not. A line that is not full ends its paragraph, which keeps verse and the lines of letters apart. A full
    one does too if a sentence ends with it and a quotation ends or starts there."""
    new_heading = following.isupper() and not re.search(r"[a-z]$", line) or \
        re.fullmatch(r"(chapter|book|part|volume) [\w-]+\.?", following, re.I)
    if line.isupper() or new_heading:
        return False
    length = len(line) + 1 + len(following.split()[0])
    first_line = paragraph == line
    if starts_inside_sentence(following):
        return not (full and first_line and length < full - 12)
    inside_clause = not first_line and re.search(r"[a-z,;]$", line)
    if not full or len(line) > 80 or length < full - (12 if inside_clause else 0):
        return False
    ends_sentence = re.search(r"[.!?][\"')\]]*$", line)
    return not (ends_sentence and (line[-1] in "\"'" or following[0] in "\"'"))


def joined(paragraph, line, words):
    """Drops the hyphen of a divided word: if the books have it more often as one word than with a hyphen."""
    if paragraph.endswith("--"):
        return paragraph + line
    if divided := re.search(r"([A-Za-z]+)-$", paragraph):
        start, end = divided[1].lower(), re.match("[A-Za-z]*", line)[0].lower()
        return (paragraph[:-1] if words[start + end] > words[f"{start}-{end}"] else paragraph) + line
    return f"{paragraph} {line}"


def whole_paragraphs(texts, words):
    """A book's parts, {number: text}, without byte order marks, and with each paragraph in one piece.

    A paragraph that two successive parts share becomes part of the first. A book keeps its breaks if at most 3 % of its
    paragraphs start in lower case, as after a line of verse."""
    lines = {part: text.removeprefix("\ufeff").lstrip("\n").split("\n\n") for part, text in sorted(texts.items())}
    starts = [line[0].islower() for part in lines.values() for line in part]
    if sum(starts) <= 0.03 * len(starts):
        return {part: "\n\n".join(lines[part]) for part in lines}
    paragraphs = collections.defaultdict(list)
    for part in lines:
        full = full_length(lines[part])
        before = lines.get(part - 1, [None])[-1]
        for line in lines[part]:
            target = paragraphs[part] or paragraphs.get(part - 1)
            if target and continues(target[-1], before, line, full):
                target[-1] = joined(target[-1], line, words)
            else:
                paragraphs[part].append(line)
            before = line
    return {part: "\n\n".join(paragraphs[part]) for part in lines}


def write(name, parts, books):
    chosen = [parts[book, part] for book, part in sorted(parts) if book in books]
    assert {item["id"].partition("#")[0] for item in chosen} == set(books)
    assert all(item["text"] for item in chosen)
    text = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in chosen).encode()
    packed = compress(text)
    (ROOT / f"assets/text/{name}.jsonl.zst").write_bytes(packed)
    print(f"{name}: {len(chosen)} documents, {len(text):,} bytes, {len(packed):,} compressed")


def write_credits():
    rows = ["| id | book | in novels-* | in lab-* |", "|---|---|---|---|"]
    for book, title in TITLES.items():
        author = AUTHORS["Blackmore" if book.startswith("Anon") else book.partition("_")[0]]
        short = "train" if book in SHORT_TRAIN else "validation" if book in SHORT_VALIDATION else ""
        rows.append(f"| `{book}` | {author}, *{title}* | {short} | {'train' if book in TRAIN else 'validation'} |")
    credits = ROOT / "assets/CREDITS.md"
    text = credits.read_text()
    credits.write_text(text[:text.index("| id | book")] + "\n".join(rows) + "\n")


def main():
    parts = {}
    for path in sorted((pathlib.Path(os.environ["DTOPP_DATA"]) / "data/text").glob("*.jsonl.zst")):
        for item in read(path):
            book, _, part = item["id"].partition("#")
            if item["source"] == "novels":
                parts[book, int(part)] = {key: item[key] for key in ("text", "id", "source")}
    words = word_counts(item["text"] for item in parts.values())
    for book in TITLES:
        texts = {part: item["text"] for (name, part), item in parts.items() if name == book}
        for part, text in whole_paragraphs(texts, words).items():
            parts[book, part]["text"] = text
    write("novels-train", parts, SHORT_TRAIN)
    write("novels-validation", parts, SHORT_VALIDATION)
    write("lab-train", parts, TRAIN)
    write("lab-validation", parts, VALIDATION)
    write_credits()


if __name__ == "__main__":
    main()
