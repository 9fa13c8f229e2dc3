// Parses the parts of a Hugging Face tokenizer.json that BPE needs: byte-level, or of characters with marks
// for spaces and tokens for bytes, as SentencePiece has it.
//
// A component that would change ids and is not supported is a DataError. Truncation, padding and the
// post-processor are ignored: ids are those of add_special_tokens=False.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <unordered_map>
#include <utility>

#include "dtopp/data/text/unicode.h"

namespace dtopp::data {

// GPT-2's byte-level alphabet: a printable byte is written as itself, any other byte as a character from
// U+0100 on.
class ByteAlphabet {
 public:
  ByteAlphabet();
  std::string encode(std::string_view bytes) const;
  // Appends the bytes of a token. A token with a character outside the alphabet contributes its own UTF-8.
  void append_bytes(std::string& bytes, std::string_view token) const;

 private:
  std::array<char32_t, 256> characters_;
  std::array<int16_t, 0x144> bytes_;  // byte per character, or -1
};

class Vocabulary {
 public:
  // If a token occurs twice, its last id is kept. Throws DataError, naming `file`, if two tokens share an id.
  Vocabulary(const std::vector<std::pair<std::string, int32_t>>& entries, const std::string& file);
  Vocabulary(Vocabulary&&) = default;

  std::optional<int32_t> id(std::string_view token) const;
  // Returns the token with this id; null if the id does not exist.
  const std::string* token(int32_t id) const;
  size_t size() const { return ids_.size(); }
  int64_t largest_id() const { return std::ssize(tokens_) - 1; }

 private:
  // Has a new random seed per load, so that no file can be crafted whose tokens all collide.
  struct SeededHash {
    using is_transparent = void;
    uint64_t seed;
    size_t operator()(std::string_view text) const;
  };
  std::unordered_map<std::string, int32_t, SeededHash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;  // by id; points to keys of ids_
};

// Quotes a token for an error message and truncates it after 60 bytes.
std::string quote(std::string_view token);

// Returns a random seed for hash tables that untrusted files fill.
uint64_t make_hash_seed();

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Returns the end of the word that begins at `begin` (< text.size()), by the GPT-2 pattern, with a scanner
// instead of a regular expression. The words cover the text. Precondition: `text` is valid UTF-8.
size_t find_word_end(std::string_view text, size_t begin, const CodePointClasses& classes);

// Writes spaces as the mark U+2581 ▁, as SentencePiece does, and reads them back. Bytes of characters that
// the vocabulary lacks have tokens like <0x0A>.

inline constexpr std::string_view kSpaceMark = "\u2581";

// The pieces of a text that begin with a further mark: none; all; those that do not begin with a space or a
// mark; of those, the one at the text's begin.
enum class FirstMark { kNone, kAll, kUnmarked, kUnmarkedAtBegin };

struct SpaceMarks {
  FirstMark first = FirstMark::kNone;
  bool split = false;  // each mark begins a word; else a piece is one word
  // Decoding turns marks to spaces and <0x0A> to bytes; else it joins tokens with spaces.
  bool decodes = false;
  bool strips_first = false;  // decoding drops a space at the begin
};

// Writes `piece` with marks to `marked`. at_begin: the piece begins the text.
void mark_spaces(std::string_view piece, bool at_begin, FirstMark first, std::string& marked);

// Returns the end of the word that begins at `begin` (< text.size()): the next mark, or the end.
size_t find_marked_end(std::string_view text, size_t begin);

std::string byte_token(uint8_t byte);  // "<0x0A>"

// Returns the text of tokens: marks become spaces. A run of byte tokens that is not valid UTF-8 becomes a
// U+FFFD per byte.
std::string unmark(std::span<const std::string* const> tokens);

// The bytes that the token adds to such a text.
int64_t marked_bytes(std::string_view token);

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
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
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
  bool use_regex = true;            // divide by GPT-2's pattern
  bool byte_level_decoder = false;  // false: decoding joins tokens with spaces
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // best first
  std::optional<std::string> unk_token;
  bool fuse_unk = false, byte_fallback = false, ignore_merges = false;
  std::vector<AddedToken> added_tokens;
};

// Parses `text`. Throws DataError, naming `file` and the field, if a field is missing, wrong or not
// supported.
TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& file);

}  // namespace dtopp::data
