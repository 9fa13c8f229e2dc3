// Converts the 13 language tasks to files for lm-eval (docs/how-to/hugging-face.md).
#pragma once

#include <filesystem>

namespace dtopp::convert {

// Writes one YAML file per task (for MMLU per category), the prompts of all items as JSON Lines, and the code
// that judges answers. The YAML files name the prompt files by their absolute path in `folder`. `data` is the
// folder with the task files. `folder` appears complete or not at all.
//
// Throws:        UsageError if `folder` exists and is not empty; DataError like load_task
void convert_to_lm_eval(const std::filesystem::path& data, const std::filesystem::path& folder);

}  // namespace dtopp::convert
