// A pattern of Oniguruma and a text, parted by NUL. The pieces of the text have their order and join to it.
#include "dtopp/data/text/split_pattern.h"

#include "dtopp/data/text/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const size_t kind = input.choice(4);
  const bool keep_matches = (kind & 1) == 0, keep_rest = (kind & 2) == 0;
  const std::string pattern = input.part(), text = input.rest();
  if (data::find_invalid_utf8(pattern) || data::find_invalid_utf8(text)) return 0;
  fuzz::accepts([&] {
    const data::SplitPattern split({pattern, "pattern", keep_matches, keep_rest}, "tokenizer.json");
    data::SplitPattern::Scratch scratch;
    scratch.set_text_bytes(text.size());
    size_t end = 0, bytes = 0;
    split.for_each_piece(text, scratch, [&](size_t begin, size_t count) {
      fuzz::require(count > 0 && begin >= end && count <= text.size() - begin,
                    "pieces follow each other in the text");
      fuzz::require(!data::find_invalid_utf8(std::string_view(text).substr(begin, count)),
                    "a piece is UTF-8");
      end = begin + count;
      bytes += count;
    });
    if (keep_matches && keep_rest) fuzz::require(bytes == text.size(), "the pieces join to the text");
  });
  return 0;
}
