#include "dtopp/data/text/split_pattern.h"

#include <algorithm>
#include <cctype>
#include <new>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

// Oniguruma's \s and \w, in a class. PCRE2's \s has U+180E too, and its \w lacks marks.
constexpr std::string_view kSpaces = "\\x{9}-\\x{d}\\x{85}\\p{Z}";
constexpr std::string_view kWords = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

bool is_ascii_letter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }

// Oniguruma's \w outside of a class, which has six more members than in one.
constexpr std::string_view kWord =
    "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}]";

// True if Oniguruma takes the two letters, without regard to case, for one ligature as well (such as U+FB06).
bool is_ligature(char32_t first, char32_t second) {
  const std::array<char, 2> pair = {static_cast<char>(first | 0x20), static_cast<char>(second | 0x20)};
  for (const std::string_view ligature : {"ff", "fi", "fl", "ss", "st"})
    if (std::string_view(pair.data(), 2) == ligature) return true;
  return false;
}

// Rewrites a regular expression of Oniguruma, which Hugging Face `tokenizers` uses, for PCRE2 with the
// options UTF, UCP and MULTILINE.
//
// The rewritten pattern matches the same text, apart from characters that the Unicode version of one of the
// two libraries lacks. What PCRE2 matches in another way is rewritten, or refused if that is not exact: a
// DataError that names the construct and its byte in `pattern` (valid UTF-8).
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : pattern_(pattern) {}

  std::string rewrite() {
    while (next_ < pattern_.size()) {
      const char c = pattern_[next_];
      if (c == '(')
        open_group();
      else if (c == ')')
        close_group();
      else if (c == '[')
        char_class();
      else if (c == '*' || c == '+' || c == '?' || (c == '{' && is_interval()))
        quantifier();
      else if (c == '|' || c == '^' || c == '$')
        add_syntax(false);
      else if (c == '.')
        add_syntax(true);
      else if (take("\\b"))
        add_word_boundary();
      else
        item();
    }
    if (!groups_.empty()) fail(pattern_.size(), "a group that does not end");
    return out_;
  }

 private:
  // A member of a class: one code point, or a set, which is already written for PCRE2.
  struct Member {
    char32_t value = 0;
    std::optional<std::string> set;
  };

  // Names the construct `what` and its byte.
  [[noreturn]] void fail(size_t at, const std::string& what) const {
    throw DataError("byte ", at, " of the pattern: ", what);
  }

  bool follows(std::string_view text) const { return pattern_.substr(next_).starts_with(text); }

  // Skips `text` if it follows, and returns true then.
  bool take(std::string_view text) {
    if (!follows(text)) return false;
    next_ += text.size();
    return true;
  }

  // Reads a character, an escape or a property.
  Member read_member() {
    if (next_ == pattern_.size()) fail(next_, "a class that does not end");
    if (!follows("\\")) {
      const CodePoint c = code_point_at(pattern_, next_);
      next_ += c.bytes;
      return {c.value, {}};
    }
    const size_t at = next_++;
    if (next_ == pattern_.size()) fail(at, "a backslash at the end");
    const CodePoint escaped = code_point_at(pattern_, next_);
    next_ += escaped.bytes;
    switch (escaped.value) {
      case 't':
        return {'\t', {}};
      case 'n':
        return {'\n', {}};
      case 'v':
        return {'\v', {}};
      case 'f':
        return {'\f', {}};
      case 'r':
        return {'\r', {}};
      case 's':
        return {0, std::string(kSpaces)};
      case 'S':
        return {0, "\\S\\x{180e}"};
      case 'd':
        return {0, "\\p{Nd}"};
      case 'D':
        return {0, "\\P{Nd}"};
      case 'w':
        return {0, std::string(kWords)};
      case 'p':
      case 'P':
        return {0, property(at, escaped.value == 'P')};
      case 'u':
        return {hexadecimal(at, 4), {}};
      case 'x':
        return {hexadecimal(at, 2), {}};
      default:
        if (is_ascii_letter(escaped.value) || is_ascii_digit(escaped.value))
          fail(at, "this escape is not supported");
        return {escaped.value, {}};
    }
  }

  // After \p: {Name} or {^Name}, a general category or a script.
  std::string property(size_t at, bool negated) {
    const size_t end = pattern_.find('}', next_);
    if (!take("{") || end == pattern_.npos) fail(at, "a property without its {name} is not supported");
    if (take("^")) negated = !negated;
    const std::string name(pattern_.substr(next_, end - next_));
    next_ = end + 1;
    for (const char c : name)
      if (!is_ascii_letter(static_cast<uint8_t>(c)) && c != '_') fail(at, "this property is not supported");
    return std::string(negated ? "\\P{" : "\\p{") + (name.size() > 2 ? "sc:" : "") + name + "}";
  }

  // After \x or \u: `digits` digits, or any number of them in braces.
  char32_t hexadecimal(size_t at, size_t digits) {
    const bool braces = digits == 2 && take("{");
    const size_t begin = next_;
    char32_t value = 0;
    while (next_ < pattern_.size() && (braces || next_ - begin < digits) &&
           std::isxdigit(static_cast<uint8_t>(pattern_[next_])) != 0 && value <= 0x10FFFF) {
      const char c = pattern_[next_++];
      value = value * 16 + static_cast<char32_t>(
                               is_ascii_digit(static_cast<uint8_t>(c)) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    const bool complete = braces ? next_ > begin && take("}") : next_ - begin == digits;
    // \x80 to \xff are bytes for Oniguruma, not code points.
    const bool is_byte = digits == 2 && !braces && value >= 0x80;
    if (!complete || is_byte || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      fail(at, "this character code is not supported");
    return value;
  }

  struct Group {
    size_t begin;  // in out_
    bool can_repeat;
    bool ignored_case;  // before the group
  };
  // Copies one character that both read alike; it `can_repeat` if a quantifier may follow.
  void add_syntax(bool can_repeat) {
    begin_atom(can_repeat);
    out_ += pattern_[next_++];
  }

  void add_word_boundary() {
    begin_atom(false);
    const std::string word(kWord);
    out_ += "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
  }

  // Notes where the next atom begins in out_.
  void begin_atom(bool can_repeat) {
    atom_ = out_.size();
    can_repeat_ = can_repeat;
    letter_ = 0;
  }

  void open_group() {
    const size_t at = next_;
    const Group group = {out_.size(), !follows("(?=") && !follows("(?!") && !follows("(?<"), ignore_case_};
    for (const std::string_view opening : {"(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "("}) {
      if (!take(opening)) continue;
      if (opening == "(" && (follows("?") || follows("*"))) break;
      ignore_case_ = ignore_case_ || opening == "(?i:";
      groups_.push_back(group);
      out_ += opening;
      begin_atom(false);
      return;
    }
    fail(at, "this kind of group is not supported");
  }

  void close_group() {
    if (groups_.empty()) fail(next_, "a ) without its (");
    const Group group = groups_.back();
    groups_.pop_back();
    ++next_;
    out_ += ')';
    begin_atom(group.can_repeat);
    atom_ = group.begin;
    ignore_case_ = group.ignored_case;
  }

  // True if `{` begins an interval; else it is an ordinary character.
  bool is_interval() const {
    size_t i = next_ + 1;
    const auto skip_digits = [&] {
      const size_t begin = i;
      while (i < pattern_.size() && is_ascii_digit(static_cast<uint8_t>(pattern_[i]))) ++i;
      return i - begin;
    };
    size_t digits = skip_digits();
    if (i < pattern_.size() && pattern_[i] == ',') {
      ++i;
      digits += skip_digits();
    }
    return digits > 0 && i < pattern_.size() && pattern_[i] == '}';
  }

  void quantifier() {
    const size_t at = next_;
    if (!can_repeat_) fail(at, "a quantifier here is not supported");
    const bool interval = pattern_[next_] == '{';
    const size_t end = interval ? pattern_.find('}', next_) + 1 : next_ + 1;
    const std::string_view text = pattern_.substr(next_, end - next_);
    next_ = end;
    if (text.starts_with("{,"))
      out_.append("{0").append(text.substr(1));
    else
      out_ += text;
    if (take("?")) {
      if (interval && text.find(',') == text.npos) fail(at, "the quantifier {n}? is not supported");
      out_ += '?';
    } else if (take("+")) {
      // After an interval, Oniguruma takes it for a second quantifier; PCRE2 would not give back any.
      if (interval) out_.insert(atom_, "(?:").append(")");
      out_ += '+';
    }
    begin_atom(false);
  }

  // A character or a set outside of a class.
  void item() {
    const size_t at = next_;
    const char32_t before = letter_;
    begin_atom(true);
    if (!ignore_case_ && take("\\w")) {
      out_ += kWord;
      return;
    }
    const Member member = read_member();
    check_case(at, member);
    if (member.set) {
      out_.append("[").append(*member.set).append("]");
      return;
    }
    if (ignore_case_ && before != 0 && is_ligature(before, member.value))
      fail(at, "these letters without regard to case are not supported, because they match a ligature");
    letter_ = is_ascii_letter(member.value) ? member.value : 0;
    add_literal(out_, member.value);
  }

  // Outside of ASCII, the two differ in which characters are the same without regard to case.
  void check_case(size_t at, const Member& member) const {
    if (ignore_case_ && (member.set || member.value >= 0x80))
      fail(at, "only ASCII characters are supported without regard to case");
  }

  static void add_literal(std::string& out, char32_t c) {
    if (c < 0x80 && std::ispunct(static_cast<int>(c)) != 0) out += '\\';
    append_utf8(out, c);
  }

  // [A&&B] becomes (?:(?=[B])[A]): a character of A, at a place where one of B is.
  void char_class() {
    begin_atom(true);
    const size_t at = next_++;
    const bool negated = take("^");
    std::string first = negated ? "[^" : "[";
    bool complete = class_members(first);
    first += ']';
    while (!complete) {
      if (negated) fail(at, "an intersection in a negated class is not supported");
      std::string second = take("[^") ? "[^" : "[";
      complete = class_members(second);
      if (second.starts_with("[^")) {
        if (!complete || !(follows("]") || follows("&&")))
          fail(at, "this intersection of classes is not supported");
        complete = take("]") || !take("&&");
      }
      first = "(?:(?=" + second + "])" + first + ")";
    }
    out_ += first;
  }

  // Appends the members up to the class's end. Returns false if && ended them. A class within the class adds
  // its members to it.
  bool class_members(std::string& out) {
    const size_t begin = next_;
    for (;;) {
      const size_t at = next_;
      if (at == pattern_.size()) fail(begin, "a class that does not end");
      if (at == begin && (follows("]") || follows("&&"))) fail(at, "an empty class is not supported");
      if (take("]")) return true;
      if (take("&&")) return false;
      if (take("[")) {
        if (follows("^") || follows(":")) fail(at, "this class within a class is not supported");
        if (!class_members(out)) fail(at, "this intersection of classes is not supported");
        continue;
      }
      if (follows("-") && at != begin && !follows("-]")) fail(at, "this - in a class is not supported");
      const Member member = read_member();
      check_case(at, member);
      if (member.set) {
        out += *member.set;
        continue;
      }
      add_literal(out, member.value);
      if (!follows("-") || follows("-]")) continue;
      ++next_;
      const Member last = follows("[") || follows("&&") ? Member{} : read_member();
      check_case(at, last);
      if (last.set || last.value < member.value) fail(at, "this range is not supported");
      out += '-';
      add_literal(out, last.value);
    }
  }

  std::string_view pattern_;
  size_t next_ = 0;  // in pattern_
  std::string out_;
  std::vector<Group> groups_;
  size_t atom_ = 0;          // where in out_ the last atom begins
  bool can_repeat_ = false;  // a quantifier may follow it
  bool ignore_case_ = false;
  char32_t letter_ = 0;  // the last atom if it is an ASCII letter, else 0
};

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

SplitPattern::Scratch::Scratch()
    : match_(not_null(::pcre2_match_data_create(1, nullptr))),
      context_(not_null(::pcre2_match_context_create(nullptr))),
      stack_(not_null(::pcre2_jit_stack_create(kSmallestStack, kLargestStack, nullptr))) {
  ::pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  ::pcre2_set_heap_limit(context_.get(), kLargestHeapKib);
}

void SplitPattern::Scratch::set_text_bytes(size_t bytes) {
  budget_ = kBudgetPerText + kBudgetPerByte * bytes;
}

int SplitPattern::Scratch::search(const pcre2_code* code, std::string_view text, size_t begin,
                                  uint64_t steps) {
  ::pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(steps));
  return ::pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                       PCRE2_NO_UTF_CHECK, match_.get(), context_.get());
}

int SplitPattern::Scratch::search_with_budget(const pcre2_code* code, std::string_view text, size_t begin) {
  int status = search(code, text, begin, kCheapSteps);
  for (uint64_t steps = 10 * kCheapSteps; status == PCRE2_ERROR_MATCHLIMIT && budget_ > 0; steps *= 10) {
    steps = std::min({steps, budget_, uint64_t{UINT32_MAX}});
    budget_ -= steps;
    status = search(code, text, begin, steps);
  }
  return status;
}

SplitPattern::SplitPattern(const SplitSpec& spec, const std::string& file)
    : location_(file + ": " + spec.field), keep_matches_(spec.keep_matches), keep_rest_(spec.keep_rest) {
  const auto compile_error = [&](const std::string& cause) { return DataError(location_, ": ", cause); };
  std::string pattern;
  try {
    pattern = Rewriter(spec.pattern).rewrite();
  } catch (const DataError& error) {
    throw compile_error(error.what());
  }
  const Owned<pcre2_compile_context, pcre2_compile_context_free> context(
      not_null(::pcre2_compile_context_create(nullptr)));
  ::pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  for (const auto& [code, option] : {std::pair{&anywhere_, 0U}, {&anchored_, PCRE2_ANCHORED}}) {
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

bool SplitPattern::find_next(std::string_view text, Match& match, Scratch& scratch) const {
  const auto after = [&](size_t offset) {
    return offset + (offset < text.size() ? code_point_at(text, offset).bytes : 1);
  };
  bool one_place = false;  // search place by place, because a search of the rest takes too many steps
  for (size_t begin = match.end; begin <= text.size();) {
    const int status = one_place ? scratch.search_with_budget(anchored_.get(), text, begin)
                                 : scratch.search(anywhere_.get(), text, begin, kCheapSteps);
    if (status >= 0) {
      const PCRE2_SIZE* const offsets = scratch.offsets();
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
      throw DataError(location_, ": takes too much time or memory on this text: ", message_of(status));
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
