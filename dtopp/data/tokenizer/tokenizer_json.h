// Parses the parts of a Hugging Face tokenizer.json that BPE needs: byte-level, or of characters with marks
// for spaces and tokens for bytes, as SentencePiece has it.
//
// A component that would change ids and is not supported is a DataError. Truncation, padding and the
// post-processor are ignored: ids are those of add_special_tokens=False.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/data/tokenizer/space_marks.h"

namespace dtopp::data {

// Spellings of the end-of-text token, by model family: GPT and Qwen, Llama 3, DeepSeek, RoBERTa and Mistral.
inline constexpr std::array<std::string_view, 4> kEndOfTextTokens = {"<|endoftext|>", "<|end_of_text|>",
                                                                     "<｜end▁of▁sentence｜>", "</s>"};

// Limits on the file: its bytes, its ids (exclusive; also the entries of vocab and of merges), and the bytes
// of an added token.
inline constexpr uint64_t kMaxTokenizerBytes = uint64_t{64} << 20;
inline constexpr int64_t kMaxTokenId = int64_t{1} << 22;
inline constexpr size_t kMaxAddedTokenBytes = 1024;

struct AddedToken {
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// A pre-tokenizer that divides text where a pattern matches, before ByteLevel does.
struct SplitSpec {
  std::string pattern;  // a regular expression of Oniguruma
  std::string field;    // its place in the file
  bool keep_matches = true;
  bool keep_rest = true;  // the text between the matches
};

struct TokenizerSpec {
  bool nfc = false;
  std::optional<SpaceMarks> space_marks;  // in place of ByteLevel and its fields
  std::vector<SplitSpec> splits;          // each divides the pieces of the one before it
  bool add_prefix_space = false;
  bool use_regex = true;            // divide by GPT-2's pattern (pre_tokenizer.h)
  bool byte_level_decoder = false;  // false: decoding joins tokens with spaces
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // best first
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
};

// Parses `text`. Throws DataError, naming `file` and the field, if a field is missing, wrong or not
// supported.
TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& file);

}  // namespace dtopp::data
