// Divides text as a Split pre-tokenizer of Hugging Face does, by a regular expression.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/data/text/tokenizer_json.h"

namespace dtopp::data {

inline bool is_ascii_letter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
inline bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }

// Reads the characters and sets of an Oniguruma pattern, one after another.
class OnigurumaReader {
 public:
  explicit OnigurumaReader(std::string_view pattern) : pattern_(pattern) {}

 protected:
  // A member of a class: one code point, or a set, which is already written for PCRE2.
  struct Member {
    char32_t value = 0;
    std::optional<std::string> set;
  };

  // Throws DataError, naming the construct `what` and its byte.
  [[noreturn]] void fail(size_t at, const std::string& what) const;
  bool follows(std::string_view text) const { return pattern_.substr(next_).starts_with(text); }
  // Skips `text` if it follows, and returns true then.
  bool take(std::string_view text);
  // Reads a character, an escape or a property.
  Member read_member();

  std::string_view pattern_;
  size_t next_ = 0;  // in pattern_

 private:
  // After \p: {Name} or {^Name}, a general category or a script.
  std::string property(size_t at, bool negated);
  // After \x or \u: `digits` digits, or any number of them in braces.
  char32_t hexadecimal(size_t at, size_t digits);
};

// Rewrites a regular expression of Oniguruma, which Hugging Face `tokenizers` uses, for PCRE2.
//
// The rewritten pattern matches the same text, apart from characters that the Unicode version of one of the
// two libraries lacks. What PCRE2 matches in another way is rewritten, or refused if that is not exact.

// Returns a pattern for the options UTF, UCP and MULTILINE. Throws DataError, naming the construct and its
// byte in `pattern` (valid UTF-8), if it is not supported.
std::string oniguruma_to_pcre2(std::string_view pattern);

class SplitPattern {
 public:
  // The memory of matches in one thread, and what remains of the steps that a text may take.
  class Scratch {
   public:
    Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch();
    // Call once per text. The steps are proportional to its length, so that no pattern can take forever.
    void set_text_bytes(size_t bytes);

   private:
    friend class SplitPattern;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Throws DataError, naming `file` and the field, if the pattern is damaged or not supported.
  SplitPattern(const SplitSpec& spec, const std::string& file);
  SplitPattern(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Calls visit(begin, bytes) for each piece of `text` (valid UTF-8) in order; no piece is empty. Throws
  // DataError if the pattern takes too much time or memory.
  template <class Visit>
  void for_each_piece(std::string_view text, Scratch& scratch, const Visit& visit) const {
    size_t done = 0;
    const auto report = [&](size_t end, bool keep) {
      if (keep && end > done) visit(done, end - done);
      done = end;
    };
    Match match;
    while (find_next(text, match, scratch)) {
      report(match.begin, keep_rest_);
      report(match.end, keep_matches_);
    }
    report(text.size(), keep_rest_);
  }

 private:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    bool any = false;
  };
  // Replaces `match` by the one that follows it. Returns false if there is none.
  bool find_next(std::string_view text, Match& match, Scratch& scratch) const;

  struct Code;
  std::unique_ptr<Code> code_;
  bool keep_matches_;
  bool keep_rest_;
};

std::vector<SplitPattern> compile_splits(const std::vector<SplitSpec>& specs, const std::string& file);

}  // namespace dtopp::data
