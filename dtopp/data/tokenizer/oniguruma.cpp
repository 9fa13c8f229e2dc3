#include "dtopp/data/tokenizer/oniguruma.h"

#include <array>
#include <cctype>
#include <optional>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"
#include "dtopp/data/tokenizer/oniguruma_reader.h"

namespace dtopp::data {
namespace {

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

class Rewriter : private OnigurumaReader {
 public:
  using OnigurumaReader::OnigurumaReader;

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

  std::string out_;
  std::vector<Group> groups_;
  size_t atom_ = 0;          // where in out_ the last atom begins
  bool can_repeat_ = false;  // a quantifier may follow it
  bool ignore_case_ = false;
  char32_t letter_ = 0;  // the last atom if it is an ASCII letter, else 0
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern) { return Rewriter(pattern).rewrite(); }

}  // namespace dtopp::data
