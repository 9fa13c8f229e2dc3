#include "dtopp/tasks/task_data.h"

#include <map>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/base/sha256.h"
#include "dtopp/data/text_reader.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The real files reach 5 KB a line and 8 MB in all.
constexpr uint64_t kMaxItemBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 28;

std::string strip(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The fields of one line. Errors lack file and line, which the caller knows.
class Fields {
 public:
  explicit Fields(const std::string& line) : object_(json::parse(line, nullptr, /*allow_exceptions=*/false)) {
    if (object_.is_discarded()) throw DataError("invalid JSON");
    if (!object_.is_object()) throw DataError("must be a JSON object");
  }

  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string() || strip(value.get_ref<const std::string&>()).empty())
      throw DataError(std::string("the value of \"") + key + "\" must be a string that is not empty");
    return value.get<std::string>();
  }

  std::vector<std::string> texts(const char* key, int64_t count) const {
    const json& array = at(key);
    bool good = array.is_array() && std::cmp_equal(array.size(), count);
    for (size_t i = 0; good && i < array.size(); ++i)
      good = array[i].is_string() && !array[i].get_ref<const std::string&>().empty();
    if (!good)
      throw DataError(std::string("the value of \"") + key + "\" must be an array of " +
                      std::to_string(count) + " strings that are not empty");
    return array.get<std::vector<std::string>>();
  }

  int64_t index(const char* key, int64_t count) const {
    const json& value = at(key);
    // A number beyond int64 is an unsigned one.
    const bool good = value.is_number_integer() && value >= 0 && value < count;
    if (!good)
      throw DataError(std::string("the value of \"") + key + "\" must be an integer from 0 to " +
                      std::to_string(count - 1));
    return value.get<int64_t>();
  }

 private:
  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw DataError(std::string("has no key \"") + key + "\"");
    return *found;
  }

  json object_;
};

TaskItem parse_item(const Task& task, const Fields& fields) {
  TaskItem item;
  switch (task.type) {
    case TaskType::kMultipleChoice:
      item.question = strip(fields.text("query"));
      item.choices = fields.texts("choices", task.num_choices);
      item.gold = fields.index("gold", task.num_choices);
      break;
    case TaskType::kSchema:
      item.choices = fields.texts("context_options", task.num_choices);
      item.continuation = strip(fields.text("continuation"));
      item.gold = fields.index("gold", task.num_choices);
      break;
    case TaskType::kLanguageModeling:
      item.question = strip(fields.text("context"));
      item.continuation = strip(fields.text("continuation"));
      break;
    case TaskType::kGeneration: {
      item.question = strip(fields.text("context"));
      const std::string thought = fields.text("chain_of_thought");
      const std::string answer = fields.text("answer");
      item.answer = strip(answer);
      item.worked_answer.append(strip(thought)).append(kAnswerMark).append(item.answer);
      item.raw_worked_answer.append(thought).append(kAnswerMark).append(answer);
      break;
    }
  }
  return item;
}

}  // namespace

TaskFile read_task_file(const Task& task, const fs::path& path) {
  LineReader lines(path, {}, kMaxItemBytes);
  std::map<std::string, std::vector<TaskItem>> items;  // by category
  Sha256 digest;
  std::string line;
  for (uint64_t offset = 0; lines.next(line); offset = lines.position().offset) {
    digest.update(line);
    if (lines.position().offset - offset > line.size()) digest.update("\n");
    try {
      if (lines.position().offset > kMaxFileBytes) throw DataError("the file is too long for a task");
      const Fields fields(line);
      const std::string category = task.by_category ? strip(fields.text("category")) : "";
      items[category].push_back(parse_item(task, fields));
    } catch (const DataError& error) {
      throw DataError(path.string() + ": line " + std::to_string(lines.position().line) + ": " +
                      error.what() + "; restore the file from its source");
    }
  }
  TaskFile file;
  for (auto& [category, members] : items) file.data_sets.push_back({category, std::move(members)});
  file.sha256 = digest.hexdigest();
  return file;
}

std::vector<DataSet> load_task(const Task& task, const fs::path& directory) {
  for (const char* ending : {".jsonl.zst", ".jsonl", ".jsonl.gz"}) {
    const fs::path path = directory / (std::string(task.name) + ending);
    if (path_kind(path) == PathKind::kNothing) continue;
    TaskFile file = read_task_file(task, path);
    if (file.sha256 != task.sha256)
      throw DataError(path.string() + ": its text has SHA-256 " + file.sha256.substr(0, 16) +
                      "…, the task's is " + std::string(task.sha256.substr(0, 16)) +
                      "…: the file has changed; restore it from its source");
    return std::move(file.data_sets);
  }
  throw DataError((directory / task.name).string() +
                  ".jsonl.zst: no such file; --data names the folder with the task files, in a configuration "
                  "validation.task_data (validation.tasks=[] trains without them)");
}

}  // namespace dtopp
