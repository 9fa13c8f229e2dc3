// Prints one JSON object per safetensors file, for comparison with Hugging Face's reader and writer:
//   list_tensors FILE…
// The object is {name: [dtype, shape, bytes as hexadecimal digits]}, or {"error": …} for a refused file.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/safetensors.h"

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    nlohmann::json result = nlohmann::json::object();
    try {
      const dtopp::SafetensorsFile file(arguments[i]);
      for (const auto& tensor : file.tensors()) {
        std::string digits;
        for (const auto byte : tensor.bytes) {
          char text[3];
          std::snprintf(text, sizeof(text), "%02x", static_cast<unsigned>(byte));
          digits += text;
        }
        result[tensor.name] = {tensor.dtype, tensor.shape, digits};
      }
    } catch (const dtopp::DataError& error) {
      result = {{"error", error.what()}};
    }
    std::puts(result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
}
