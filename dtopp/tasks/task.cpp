#include "dtopp/tasks/task.h"

#include <cmath>
#include <map>
#include <numeric>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/config/config.h"
#include "dtopp/data/text/text_reader.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::tasks {
namespace {

using enum TaskType;

constexpr std::string_view kSymbolic = "Symbolic Problem Solving";
constexpr std::string_view kWorld = "World Knowledge";
constexpr std::string_view kCommonsense = "Commonsense Reasoning";
constexpr std::string_view kLanguage = "Language Understanding";
constexpr std::string_view kReading = "Reading Comprehension";

constexpr std::string_view kAnswerMark = " #### ";  // between a chain of thought and the answer
constexpr std::string_view kAnswer = "\nAnswer: ";
constexpr std::string_view kFormula = "\nUsing the formula below:\n";

constexpr std::array<Task, 13> kTasks = {{
    {"svamp", "SVAMP", kSymbolic, kGeneration, 5, "Q: ", kFormula, 0, false,
     "52c8083ab4f658da1c906b8f68af6769a809a4247b5cd6a3d248bdaa24bc88d8"},
    {"mmlu", "MMLU", kWorld, kMultipleChoice, 5, "", kAnswer, 4, true,
     "be087e2742b8fc1c698db43b611e3ac9c4044f04b3cdd8ca33caf6d997fdd150",
     "4466b2dfb2a13d00a33f4d1b7ffc5d06a4c9b34f"},
    {"arc_easy", "ARC-Easy", kWorld, kMultipleChoice, 0, "", kAnswer, 4, false,
     "f31db4a944eb1d3f087293123d42fbdeccb947af4ffd6968a96d04911ffc6508"},
    {"arc_challenge", "ARC-Challenge", kWorld, kMultipleChoice, 0, "", kAnswer, 4, false,
     "f6a8318613fe1021fac804b606224bb6d476a88a2a68f5285f908482245ea714"},
    {"copa", "COPA", kCommonsense, kMultipleChoice, 5, "", " ", 2, false,
     "f71e4d4149e5757ac0e6f3eea716f4398d8f67655832585bcd30265832e02448"},
    {"piqa", "PIQA", kCommonsense, kMultipleChoice, 5, "", kAnswer, 2, false,
     "ece2bb9392245a05aec39084cdc698884af40b5c107dfadf271257bb6165d050"},
    {"hellaswag", "HellaSwag", kLanguage, kMultipleChoice, 0, "", " ", 4, false,
     "2314d03b6c1299fc4c55b1bd5dc95784915b54567444e65f4afd4f188a39635f",
     "448321079fdc140bd8566b16b24eda9ceacd3501"},
    {"winogrande", "WinoGrande", kLanguage, kSchema, 5, "", " ", 2, false,
     "f910b3fa7e7fca3edd2b6a58fe0d48cc7d5ec5d7510e1f38276c680345623ae0"},
    {"lambada_openai", "LAMBADA", kLanguage, kLanguageModeling, 5, "", " ", 0, false,
     "3751a374ef7df7026a9d4aaf96b26d47f0d30a3025bdd196bdf486a94af438d6"},
    {"boolq", "BoolQ", kReading, kMultipleChoice, 5, "", kAnswer, 2, false,
     "a92707bc8583e051ed177b1874f4e6b1deeef67734ed70a2a6b972e824886850"},
    {"agi_eval_lsat_rc", "AGIEval-LSAT-RC", kReading, kMultipleChoice, 5, "", " ", 4, false,
     "b6a11a7aa9d942482942729e7c97f55046ded7e5aeddb45ad632d6a0ac075735"},
    {"agi_eval_lsat_lr", "AGIEval-LSAT-LR", kReading, kMultipleChoice, 5, "", " ", 4, false,
     "1a736f979c81346798945ddf1460c1ed0fcee3fe5eaaefe956f5cc9f3f930bdc"},
    {"agi_eval_sat_en", "AGIEval-SAT-EN", kReading, kMultipleChoice, 5, "", " ", 4, false,
     "7a7287a6d1820f71f3e9c96c1ddd709c31e30fdeac4800376d687233909beb2d"},
}};

std::vector<std::string_view> split(std::string_view names) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    parts.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The real files have at most 5 KB per line and 8 MB in all.
constexpr uint64_t kMaxItemBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 28;

constexpr const char* kRemedy = "scripts/get_data.py tasks fetches it";

std::string strip(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::string text_of(const JsonFields& fields, const char* key) {
  std::string text = fields.text(key);
  if (strip(text).empty()) fields.fail(key, "must be a string that is not empty");
  return text;
}

std::vector<std::string> texts_of(const JsonFields& fields, const char* key, int64_t count) {
  std::vector<std::string> texts = fields.texts(key);
  if (!std::cmp_equal(texts.size(), count) || std::ranges::count(texts, "") > 0)
    fields.fail(key, "must be an array of ", count, " strings that are not empty");
  return texts;
}

TaskItem parse_item(const Task& task, const JsonFields& fields) {
  TaskItem item;
  switch (task.type) {
    case TaskType::kMultipleChoice:
      item.question = strip(text_of(fields, "query"));
      item.choices = texts_of(fields, "choices", task.num_choices);
      item.gold = fields.integer("gold", 0, task.num_choices - 1);
      break;
    case TaskType::kSchema:
      item.choices = texts_of(fields, "context_options", task.num_choices);
      item.continuation = strip(text_of(fields, "continuation"));
      item.gold = fields.integer("gold", 0, task.num_choices - 1);
      break;
    case TaskType::kLanguageModeling:
      item.question = strip(text_of(fields, "context"));
      item.continuation = strip(text_of(fields, "continuation"));
      break;
    case TaskType::kGeneration: {
      item.question = strip(text_of(fields, "context"));
      const std::string thought = text_of(fields, "chain_of_thought");
      const std::string answer = text_of(fields, "answer");
      item.answer = strip(answer);
      item.worked_answer.append(strip(thought)).append(kAnswerMark).append(item.answer);
      item.raw_worked_answer.append(thought).append(kAnswerMark).append(answer);
      break;
    }
  }
  return item;
}

// The length comes first, so that no two lists of strings give the same bytes.
void add_text(Sha256& digest, std::string_view text) {
  digest.update(std::to_string(text.size()) + ":");
  digest.update(text);
}

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

// The normalized answer in a generated text. It is the part after the last " #### " and before any stop
// string; without " #### ", it is everything before the first stop string.
std::string extract_answer(std::string_view generated) {
  std::string_view answer = cut_at_stop_string(generated);
  const size_t mark = answer.rfind(kAnswerMark);
  if (mark != answer.npos) answer.remove_prefix(mark + kAnswerMark.size());
  return normalize_answer(answer);
}

}  // namespace

std::span<const Task> all_tasks() { return kTasks; }

std::vector<Task> select_tasks(std::string_view names) {
  std::vector<std::string> known = {"all"};
  for (const Task& task : kTasks) known.emplace_back(task.name);
  for (const std::string_view name : split(names)) {
    if (std::ranges::find(known, name) == known.end())
      throw UsageError("--tasks: unknown task ", config::quote_for_message(name), "; ",
                       config::suggest(std::string(name), known, "known tasks:", known));
  }
  std::vector<Task> tasks;
  std::ranges::copy_if(kTasks, std::back_inserter(tasks), [&](const Task& task) {
    return names_task(names, task) || std::ranges::count(split(names), "all") > 0;
  });
  return tasks;
}

bool names_task(std::string_view names, const Task& task) {
  return std::ranges::count(split(names), task.name) > 0;
}

std::string digest_items(std::span<const DataSet> data_sets) {
  Sha256 digest;
  for (const DataSet& data : data_sets) {
    for (const TaskItem& item : data.items) {
      add_text(digest, data.category);
      add_text(digest, item.question);
      for (const std::string& choice : item.choices) add_text(digest, choice);
      // raw_worked_answer determines worked_answer.
      for (const std::string& text : {item.continuation, item.raw_worked_answer, item.answer})
        add_text(digest, text);
      add_text(digest, std::to_string(item.gold));
    }
  }
  return digest.hexdigest();
}

TaskFile read_task_file(const Task& task, const fs::path& path) {
  data::LineReader lines(path, {}, {.max_bytes = kMaxItemBytes});
  std::map<std::string, std::vector<TaskItem>> items;  // by category
  std::string bytes;
  std::string line;
  for (uint64_t offset = 0; lines.next(line); offset = lines.position().offset) {
    bytes += line;
    if (lines.position().offset - offset > line.size()) bytes += '\n';
    const std::string location = path.string() + ": line " + std::to_string(lines.line_number());
    try {
      if (lines.position().offset > kMaxFileBytes)
        throw DataError(location, ": the file is too long for a task");
      const JsonFields fields(line, location);
      const std::string category = task.by_category ? strip(text_of(fields, "category")) : "";
      items[category].push_back(parse_item(task, fields));
    } catch (const DataError& error) {
      throw DataError(error.what(), "; ", kRemedy);
    }
  }
  TaskFile file;
  for (auto& [category, members] : items) file.data_sets.push_back({category, std::move(members)});
  file.blob_id = git_blob_id(bytes);
  return file;
}

std::vector<DataSet> load_task(const Task& task, const fs::path& directory) {
  for (const char* ending : {".jsonl.zst", ".jsonl", ".jsonl.gz"}) {
    const fs::path path = directory / (std::string(task.name) + ending);
    if (path_kind(path) == PathKind::kNothing) continue;
    TaskFile file = read_task_file(task, path);
    const std::string digest = digest_items(file.data_sets);
    if (digest != task.items_sha256 && file.blob_id != task.file_blob_id)
      throw DataError(path, ": its items have SHA-256 ", digest.substr(0, 16), "…, the task's have ",
                      task.items_sha256.substr(0, 16), "…: the file has changed; ", kRemedy);
    return std::move(file.data_sets);
  }
  throw DataError(
      (directory / task.name).string(), ".jsonl: no such file; ", kRemedy,
      "; set --data, in a configuration validation.task_data, to its folder (validation.tasks=[] trains "
      "without tasks)");
}

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
    spaced.append(word == "a" || word == "an" || word == "the" ? " " : word);
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

Answer judge(const Task& task, const TaskItem& item, const Scores& scores) {
  Answer answer;
  if (task.type != TaskType::kGeneration) {
    const std::vector<float>& gold = scores.log_probs.at(static_cast<size_t>(item.gold));
    answer.nll = -std::accumulate(gold.begin(), gold.end(), 0.0);
    answer.tokens = std::ssize(gold);
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
