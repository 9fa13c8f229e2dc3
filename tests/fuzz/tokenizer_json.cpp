// tokenizer.json, and after a NUL a text to encode with it. A plain byte-level model decodes to the text.
#include "dtopp/data/text/tokenizer_json.h"

#include <algorithm>

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/data/text/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

// Every byte has a token, and nothing but the merges changes the text.
static bool is_plain(const data::TokenizerSpec& spec, const data::Tokenizer& tokenizer) {
  if (spec.nfc || spec.add_prefix_space || !spec.byte_level_decoder || !spec.added_tokens.empty())
    return false;
  if (!std::ranges::all_of(spec.splits,
                           [](const auto& split) { return split.keep_matches && split.keep_rest; }))
    return false;
  for (char32_t c = 0x21; c < 0x144; ++c) {  // the byte-level alphabet
    if ((c >= 0x7f && c < 0xa1) || c == 0xad) continue;
    std::string token;
    data::append_utf8(token, c);
    if (!tokenizer.token_to_id(token)) return false;
  }
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::string json = input.part();
  const std::string text = input.empty() ? "Hello, world! It's 12 o'clock.\n\n  é日" : input.rest();
  data::TokenizerSpec spec;
  if (!fuzz::accepts([&] { spec = data::parse_tokenizer_json(json, "tokenizer.json"); })) return 0;
  const auto file = fuzz::write_scratch("tokenizer.json", json);
  fuzz::accepts([&] {
    const data::Tokenizer tokenizer = data::Tokenizer::load(file);
    const std::vector<int32_t> ids = tokenizer.encode(text);
    for (const int32_t id : ids) {
      fuzz::require(id >= 0 && id < tokenizer.vocab_size(), "ids lie in the vocabulary");
      tokenizer.text_bytes(id);
    }
    const std::string decoded = tokenizer.decode(ids);
    fuzz::require(!data::find_invalid_utf8(decoded), "decoded text is UTF-8");
    if (is_plain(spec, tokenizer)) fuzz::require(decoded == text, "decoded text is the encoded one");
    tokenizer.decode_generated(ids);
    const std::vector<int32_t> unknown = {-1, static_cast<int32_t>(tokenizer.vocab_size())};
    fuzz::require(tokenizer.decode_generated(unknown).empty(), "ids outside the vocabulary have no text");
    fuzz::require(!fuzz::accepts([&] { tokenizer.decode(unknown); }),
                  "and are refused where they must exist");
    tokenizer.end_of_text_token();
  });
  return 0;
}
