// Declares the Python code that conversions write beside their output. The build embeds it: dtopp's model
// class for transformers (dtopp/convert/huggingface), and the judging of tasks for lm-eval
// (dtopp/convert/lm_eval).
#pragma once

#include <string_view>

namespace dtopp::convert {

extern const std::string_view kHuggingFaceConfiguration;  // configuration_dtopp.py
extern const std::string_view kHuggingFaceModel;          // modeling_dtopp.py
extern const std::string_view kLmEvalTasks;               // dtopp_tasks.py

}  // namespace dtopp::convert
