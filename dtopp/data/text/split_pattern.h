// Divides text as a Split pre-tokenizer of Hugging Face does, by a regular expression.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <memory>

#include <pcre2.h>

#include "dtopp/data/text/tokenizer_json.h"

namespace dtopp::data {

// A value of PCRE2, and the function that frees it.
template <class T, void (*kFree)(T*)>
struct FreeWith {
  void operator()(T* made) const { kFree(made); }
};
template <class T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, FreeWith<T, kFree>>;

class SplitPattern {
 public:
  // The memory of matches in one thread, and what remains of the steps that a text may take.
  class Scratch {
   public:
    Scratch();
    // Call once per text. The steps are proportional to its length, so that no pattern can take forever.
    void set_text_bytes(size_t bytes);
    // Both return PCRE2's status. search_with_budget() takes as many steps as are needed while the budget
    // lasts.
    int search(const pcre2_code* code, std::string_view text, size_t begin, uint64_t steps);
    int search_with_budget(const pcre2_code* code, std::string_view text, size_t begin);
    const PCRE2_SIZE* offsets() const { return ::pcre2_get_ovector_pointer(match_.get()); }

   private:
    Owned<pcre2_match_data, pcre2_match_data_free> match_;
    Owned<pcre2_match_context, pcre2_match_context_free> context_;
    Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack_;
    uint64_t budget_ = 0;
  };

  // Throws DataError, naming `file` and the field, if the pattern is damaged or not supported.
  SplitPattern(const SplitSpec& spec, const std::string& file);

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
    size_t begin = 0, end = 0;
    bool any = false;
  };
  // Replaces `match` by the one that follows it. Returns false if there is none.
  bool find_next(std::string_view text, Match& match, Scratch& scratch) const;

  std::string location_;                         // the file and the field
  Owned<pcre2_code, pcre2_code_free> anywhere_;  // searches from a place on
  Owned<pcre2_code, pcre2_code_free> anchored_;  // matches at a place alone
  bool keep_matches_, keep_rest_;
};

std::vector<SplitPattern> compile_splits(const std::vector<SplitSpec>& specs, const std::string& file);

}  // namespace dtopp::data
