// The Python code that stands beside what is written, as the build found it: dtopp's model class in
// transformers (dtopp/convert/huggingface) and how lm-eval judges the tasks (dtopp/convert/lm_eval).
#pragma once

#include <string_view>

namespace dtopp {

extern const std::string_view kHuggingFaceConfiguration;  // configuration_dtopp.py
extern const std::string_view kHuggingFaceModel;          // modeling_dtopp.py
extern const std::string_view kLmEvalTasks;               // dtopp_tasks.py

}  // namespace dtopp
