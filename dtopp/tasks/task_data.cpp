#include "dtopp/tasks/task_data.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/json_fields.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/base/sha256.h"
#include "dtopp/data/text/text_reader.h"

namespace dtopp::tasks {
namespace {

namespace fs = std::filesystem;

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
    fields.fail(key, "must be an array of " + std::to_string(count) + " strings that are not empty");
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

}  // namespace

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
        throw DataError(location + ": the file is too long for a task");
      const JsonFields fields(line, location);
      const std::string category = task.by_category ? strip(text_of(fields, "category")) : "";
      items[category].push_back(parse_item(task, fields));
    } catch (const DataError& error) {
      throw DataError(std::string(error.what()) + "; " + kRemedy);
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
      throw DataError(path.string() + ": its items have SHA-256 " + digest.substr(0, 16) +
                      "…, the task's have " + std::string(task.items_sha256.substr(0, 16)) +
                      "…: the file has changed; " + kRemedy);
    return std::move(file.data_sets);
  }
  throw DataError(
      (directory / task.name).string() + ".jsonl: no such file; " + kRemedy +
      "; set --data, in a configuration validation.task_data, to its folder (validation.tasks=[] trains "
      "without tasks)");
}

}  // namespace dtopp::tasks
