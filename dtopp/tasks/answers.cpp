#include "dtopp/tasks/answers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::tasks {
namespace {

// Python's string.punctuation and the quotation marks that the harness adds to it.
bool is_punctuation(char32_t c) {
  if (c == U'‘' || c == U'’' || c == U'´') return true;
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

// Reduces white space to single spaces between words, none at the ends.
std::string join_words(std::string_view text) {
  std::string joined;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    if (i > 0 && text[i - 1] == ' ' && !joined.empty()) joined += ' ';
    joined += text[i];
  }
  return joined;
}

bool is_article(std::string_view word) { return word == "a" || word == "an" || word == "the"; }

}  // namespace

int64_t predict_choice(const std::vector<std::vector<float>>& log_probs) {
  int64_t best = 0;
  double best_loss = std::numeric_limits<double>::infinity();
  for (size_t choice = 0; choice < log_probs.size(); ++choice) {
    double loss = 0;
    for (const float log_prob : log_probs[choice]) {
      if (!std::isfinite(log_prob)) throw NumericalError("a log probability is not finite");
      loss -= log_prob;
    }
    loss /= static_cast<double>(log_probs[choice].size());
    if (loss >= best_loss) continue;
    best = static_cast<int64_t>(choice);
    best_loss = loss;
  }
  return best;
}

std::string_view cut_at_stop_string(std::string_view text) {
  for (const std::string_view stop : kStopStrings) text = text.substr(0, text.find(stop));
  return text;
}

std::string normalize_answer(std::string_view text) {
  const data::CodePointClasses& classes = data::CodePointClasses::get();
  const std::string valid = data::replace_invalid_utf8(text);
  std::string spaced;  // the text with dropped characters replaced by spaces
  std::string word;
  const auto end_word = [&] {
    spaced.append(is_article(word) ? " " : word);
    word.clear();
  };
  for (size_t offset = 0; offset < valid.size();) {
    const data::CodePoint c = data::code_point_at(valid, offset);
    offset += c.bytes;
    const bool dropped = is_punctuation(c.value) || classes.is_space(c.value);
    if (dropped || !classes.is_word(c.value)) end_word();
    if (dropped)
      spaced += ' ';
    else
      data::append_utf8(classes.is_word(c.value) ? word : spaced, data::lower_case(c.value));
  }
  end_word();
  return join_words(spaced);
}

std::string extract_answer(std::string_view generated) {
  std::string_view answer = cut_at_stop_string(generated);
  const size_t mark = answer.rfind(kAnswerMark);
  if (mark != answer.npos) answer.remove_prefix(mark + kAnswerMark.size());
  return normalize_answer(answer);
}

Answer judge(const Task& task, const TaskItem& item, const Scores& scores) {
  Answer answer;
  if (task.type != TaskType::kGeneration) {
    const std::vector<float>& gold = scores.log_probs.at(static_cast<size_t>(item.gold));
    answer.nll = -std::accumulate(gold.begin(), gold.end(), 0.0);
    answer.tokens = static_cast<int64_t>(gold.size());
  }
  switch (task.type) {
    case TaskType::kMultipleChoice:
    case TaskType::kSchema:
      answer.choice = predict_choice(scores.log_probs);
      answer.correct = answer.choice == item.gold;
      break;
    case TaskType::kLanguageModeling:
      answer.choice = predict_choice(scores.log_probs);
      answer.correct = scores.greedy.at(0);
      break;
    case TaskType::kGeneration:
      answer.text = extract_answer(scores.generated_text);
      answer.correct = answer.text.starts_with(normalize_answer(item.answer));
      break;
  }
  return answer;
}

}  // namespace dtopp::tasks
