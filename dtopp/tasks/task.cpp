#include "dtopp/tasks/task.h"

#include <algorithm>
#include <array>

#include "dtopp/base/errors.h"
#include "dtopp/config/config.h"

namespace dtopp::tasks {
namespace {

using enum TaskType;

constexpr std::string_view kSymbolic = "Symbolic Problem Solving";
constexpr std::string_view kWorld = "World Knowledge";
constexpr std::string_view kCommonsense = "Commonsense Reasoning";
constexpr std::string_view kLanguage = "Language Understanding";
constexpr std::string_view kReading = "Reading Comprehension";

constexpr std::string_view kAnswer = "\nAnswer: ";
constexpr std::string_view kFormula = "\nUsing the formula below:\n";

constexpr std::array<Task, 13> kTasks = {{
    {"svamp", "SVAMP", kSymbolic, kGeneration, 5, "Q: ", kFormula, 0, false,
     "6e9d75302c2663a8c8ce48927d784244480bc75cd0eda539677b6a92a2ff5b97"},
    {"mmlu", "MMLU", kWorld, kMultipleChoice, 5, "", kAnswer, 4, true,
     "f65e9634fb5c68fd385036c35da3bcffa0639f1aa99209fe7fe87cc8d2df5cd2"},
    {"arc_easy", "ARC-Easy", kWorld, kMultipleChoice, 0, "", kAnswer, 4, false,
     "d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5"},
    {"arc_challenge", "ARC-Challenge", kWorld, kMultipleChoice, 0, "", kAnswer, 4, false,
     "1ae3aeedf1951d881cbd5c2e3a31e78a1993d251479afbe4cb413b6707244636"},
    {"copa", "COPA", kCommonsense, kMultipleChoice, 5, "", " ", 2, false,
     "595dca44dec54c849490bd403a3e24a29e3b944065783222ebb0eb1a55298846"},
    {"piqa", "PIQA", kCommonsense, kMultipleChoice, 5, "", kAnswer, 2, false,
     "d2870e73aec5154df3faf259b7700876e11608eebdf69e9d6667435673dbe4e0"},
    {"hellaswag", "HellaSwag", kLanguage, kMultipleChoice, 0, "", " ", 4, false,
     "710706376807761607d05dff28ae9ec462444f2d94346fe76b19eb4ab86b8861"},
    {"winogrande", "WinoGrande", kLanguage, kSchema, 5, "", " ", 2, false,
     "ea1592526f3bfdd0948ed3acb1b4dfa3f83d23698917118688ee1df7f8d4b8d7"},
    {"lambada_openai", "LAMBADA", kLanguage, kLanguageModeling, 5, "", " ", 0, false,
     "411bfbe5b9054346b6a19299c0242670adbefb9162efd958593cbc0290b8c9dc"},
    {"boolq", "BoolQ", kReading, kMultipleChoice, 5, "", kAnswer, 2, false,
     "454ff101e614370bb1807fe7ebbda6fdb57e794b9662cc1ccae211bf1ff626c8"},
    {"agi_eval_lsat_rc", "AGIEval-LSAT-RC", kReading, kMultipleChoice, 5, "", " ", 4, false,
     "8f67ecf0e760a8fc737ead2e63554bbf921b23989a3bc0039d9b2e993ef6295a"},
    {"agi_eval_lsat_lr", "AGIEval-LSAT-LR", kReading, kMultipleChoice, 5, "", " ", 4, false,
     "e4a273cf9d7013b48e8cabceb54a0bf3434efa6f153a884e71ba0df5dc62d29e"},
    {"agi_eval_sat_en", "AGIEval-SAT-EN", kReading, kMultipleChoice, 5, "", " ", 4, false,
     "cb78f595cd4cbd226624d58c1a48f340ea9ad4d0a2b5b32126adfc15014170ea"},
}};

[[noreturn]] void throw_unknown_task(const std::string& name) {
  std::vector<std::string> known = {"all"};
  for (const Task& task : kTasks) known.emplace_back(task.name);
  throw UsageError("--tasks: unknown task " + config::quote_for_message(name) + "; " +
                   config::suggest(name, known, "known tasks:", known));
}

std::vector<std::string_view> split(std::string_view names) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    parts.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

std::span<const Task> all_tasks() { return kTasks; }

std::vector<Task> select_tasks(std::string_view names) {
  std::array<bool, kTasks.size()> selected = {};
  for (const std::string_view name : split(names)) {
    const auto* const task = std::ranges::find(kTasks, name, &Task::name);
    if (name == "all")
      selected.fill(true);
    else if (task == kTasks.end())
      throw_unknown_task(std::string(name));
    else
      selected[static_cast<size_t>(task - kTasks.begin())] = true;
  }
  std::vector<Task> tasks;
  for (size_t i = 0; i < kTasks.size(); ++i) {
    if (selected[i]) tasks.push_back(kTasks[i]);
  }
  return tasks;
}

bool names_task(std::string_view names, const Task& task) {
  return std::ranges::count(split(names), task.name) > 0;
}

}  // namespace dtopp::tasks
