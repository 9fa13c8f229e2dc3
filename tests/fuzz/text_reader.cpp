// Documents of plain text and JSON lines. Lines join to the file, and a reader that resumes gives the same
// rest.
#include "dtopp/data/text/text_reader.h"

#include "dtopp/data/text/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void read_lines(const std::filesystem::path& path, const std::string& text,
                       const data::LineOptions& options, bool keeps_all) {
  data::LineReader reader(path, {}, options);
  std::string line, joined;
  data::TextPosition middle;
  std::vector<std::string> rest;
  for (uint64_t number = 0; reader.next(line); ++number) {
    fuzz::require(reader.position().offset <= text.size(), "a position lies in the text");
    fuzz::require(reader.line_number() >= 1, "lines count from 1");
    if (number == 2) middle = reader.position();
    if (number > 2) rest.push_back(line);
    joined += line;
    if (keeps_all && joined.size() < reader.position().offset) joined += '\n';
  }
  fuzz::require(!keeps_all || joined == text, "the lines join to the text");
  if (middle == data::TextPosition{}) return;
  data::LineReader resumed(path, middle, options);
  for (const std::string& expected : rest)
    fuzz::require(resumed.next(line) && line == expected, "a resumed reader gives the rest");
  fuzz::require(!resumed.next(line) && resumed.position() == reader.position(), "it ends at the same place");
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t kind = input.choice(4);
  const bool json = kind == 0;
  std::string separator = kind < 2 ? "" : kind == 2 ? "\n\n" : input.part();
  separator.resize(std::min(separator.size(), data::kMaxSeparatorBytes));
  const std::string text = input.rest();
  // Compressed files have a target of their own.
  if (text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd")) return 0;
  const auto path = fuzz::write_scratch(json ? "text.jsonl" : "text.txt", text);
  fuzz::accepts([&] { read_lines(path, text, {.separator = separator}, json || separator.empty()); });
  fuzz::accepts([&] { read_lines(path, text, {.max_bytes = 20, .separator = separator}, false); });
  fuzz::accepts([&] {
    data::LineReader lines(path);
    data::DocumentParser parser;
    for (std::string line; lines.next(line);)
      fuzz::require(!data::find_invalid_utf8(parser.parse(path, lines.line_number(), line)),
                    "a document is UTF-8");
  });
  return 0;
}
