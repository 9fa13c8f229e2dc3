// The code of dtopp's model class in transformers (dtopp/convert/huggingface), which stands beside the
// weights; as the build found it.
#pragma once

#include <string_view>

namespace dtopp {

extern const std::string_view kHuggingFaceConfiguration;  // configuration_dtopp.py
extern const std::string_view kHuggingFaceModel;          // modeling_dtopp.py

}  // namespace dtopp
