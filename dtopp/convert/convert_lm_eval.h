// The 13 language tasks as lm-eval reads them (docs/huggingface.md).
#pragma once

#include <filesystem>

namespace dtopp {

// Writes a YAML file a task (a category of MMLU), the prompts of all items as JSON Lines, which the YAML
// names by where `folder` is, and the code that judges answers. `data` holds the task files. The folder
// appears complete or not at all. UsageError where it is there and not empty; DataError as of load_task.
void convert_to_lm_eval(const std::filesystem::path& data, const std::filesystem::path& folder);

}  // namespace dtopp
