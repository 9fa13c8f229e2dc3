#include "dtopp/data/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"
#include "dtopp/data/tokenizer/oniguruma.h"

namespace dtopp::data {
namespace {

// At each place of a text, a match may take kCheapSteps. More are taken out of the text's budget, so that the
// time for a text is proportional to its length whatever the pattern. PCRE2 counts steps as its match limit.
constexpr uint32_t kCheapSteps = 100;
constexpr uint64_t kBudgetPerText = 10'000'000;
constexpr uint64_t kBudgetPerByte = 50;
// Without NO_AUTO_POSSESS some repetitions would not count as steps.
constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_POSSESS;
constexpr size_t kSmallestStack = size_t{32} << 10;
constexpr size_t kLargestStack = size_t{64} << 20;
constexpr uint32_t kLargestHeapKib = 64 << 10;

template <class T>
T* not_null(T* made) {
  if (made == nullptr) throw std::bad_alloc();
  return made;
}

std::string message_of(int status) {
  std::array<PCRE2_UCHAR, 256> text{};
  ::pcre2_get_error_message(status, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Code {
  struct Free {
    void operator()(pcre2_code* code) const { ::pcre2_code_free(code); }
  };
  std::string location;                        // the file and the field
  std::unique_ptr<pcre2_code, Free> anywhere;  // searches from a place on
  std::unique_ptr<pcre2_code, Free> anchored;  // matches at a place alone
};

struct SplitPattern::Scratch::Impl {
  Impl()
      : match(not_null(::pcre2_match_data_create(1, nullptr))),
        context(not_null(::pcre2_match_context_create(nullptr))),
        stack(not_null(::pcre2_jit_stack_create(kSmallestStack, kLargestStack, nullptr))) {
    ::pcre2_jit_stack_assign(context, nullptr, stack);
    ::pcre2_set_heap_limit(context, kLargestHeapKib);
  }
  ~Impl() {
    ::pcre2_jit_stack_free(stack);
    ::pcre2_match_context_free(context);
    ::pcre2_match_data_free(match);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Returns PCRE2's status.
  int search(const pcre2_code* code, std::string_view text, size_t begin, uint64_t steps) {
    ::pcre2_set_match_limit(context, static_cast<uint32_t>(steps));
    return ::pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                         PCRE2_NO_UTF_CHECK, match, context);
  }

  // Takes as many steps as are needed while the budget lasts.
  int search_with_budget(const pcre2_code* code, std::string_view text, size_t begin) {
    int status = search(code, text, begin, kCheapSteps);
    for (uint64_t steps = 10 * kCheapSteps; status == PCRE2_ERROR_MATCHLIMIT && budget > 0; steps *= 10) {
      steps = std::min({steps, budget, uint64_t{UINT32_MAX}});
      budget -= steps;
      status = search(code, text, begin, steps);
    }
    return status;
  }

  pcre2_match_data* match;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
  uint64_t budget = 0;
};

SplitPattern::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
SplitPattern::Scratch::~Scratch() = default;
void SplitPattern::Scratch::set_text_bytes(size_t bytes) {
  impl_->budget = kBudgetPerText + kBudgetPerByte * bytes;
}

SplitPattern::SplitPattern(const SplitSpec& spec, const std::string& file)
    : code_(std::make_unique<Code>()), keep_matches_(spec.keep_matches), keep_rest_(spec.keep_rest) {
  code_->location = file + ": " + spec.field;
  const auto compile_error = [&](const std::string& cause) {
    return DataError(code_->location + ": " + cause);
  };
  std::string pattern;
  try {
    pattern = oniguruma_to_pcre2(spec.pattern);
  } catch (const DataError& error) {
    throw compile_error(error.what());
  }
  struct FreeContext {
    void operator()(pcre2_compile_context* context) const { ::pcre2_compile_context_free(context); }
  };
  const std::unique_ptr<pcre2_compile_context, FreeContext> context(
      not_null(::pcre2_compile_context_create(nullptr)));
  ::pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  for (const auto& [code, option] : {std::pair{&code_->anywhere, 0U}, {&code_->anchored, PCRE2_ANCHORED}}) {
    int status = 0;
    PCRE2_SIZE at = 0;
    code->reset(::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                kOptions | option, &status, &at, context.get()));
    if (*code == nullptr) throw compile_error("not a pattern that PCRE2 supports: " + message_of(status));
    // Without permission to create code at run time, PCRE2 interprets the pattern: slower, with the same
    // matches.
    ::pcre2_jit_compile(code->get(), PCRE2_JIT_COMPLETE);
  }
}

SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

bool SplitPattern::find_next(std::string_view text, Match& match, Scratch& scratch) const {
  Scratch::Impl& memory = *scratch.impl_;
  const auto after = [&](size_t offset) {
    return offset + (offset < text.size() ? code_point_at(text, offset).bytes : 1);
  };
  bool one_place = false;  // search place by place, because a search of the rest takes too many steps
  for (size_t begin = match.end; begin <= text.size();) {
    const int status = one_place ? memory.search_with_budget(code_->anchored.get(), text, begin)
                                 : memory.search(code_->anywhere.get(), text, begin, kCheapSteps);
    if (status >= 0) {
      const PCRE2_SIZE* const offsets = ::pcre2_get_ovector_pointer(memory.match);
      // An empty match directly after the last match does not count.
      if (offsets[0] != offsets[1] || !match.any || offsets[1] != match.end) {
        match = {offsets[0], offsets[1], true};
        return true;
      }
      begin = after(begin);
    } else if (status == PCRE2_ERROR_NOMATCH && one_place) {
      begin = after(begin);
    } else if (status == PCRE2_ERROR_NOMATCH) {
      return false;
    } else if (!one_place) {
      one_place = true;
    } else if (status == PCRE2_ERROR_NOMEMORY) {
      throw std::bad_alloc();
    } else {
      throw DataError(code_->location +
                      ": takes too much time or memory on this text: " + message_of(status));
    }
  }
  return false;
}

std::vector<SplitPattern> compile_splits(const std::vector<SplitSpec>& specs, const std::string& file) {
  std::vector<SplitPattern> splits;
  for (const SplitSpec& spec : specs) splits.emplace_back(spec, file);
  return splits;
}

}  // namespace dtopp::data
