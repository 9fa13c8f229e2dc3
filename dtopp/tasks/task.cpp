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
