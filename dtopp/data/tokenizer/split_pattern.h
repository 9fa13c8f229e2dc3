// Divides text as a Split pre-tokenizer of Hugging Face does, by a regular expression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer_json.h"

namespace dtopp::data {

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
