// Reads and writes the tensors of the programs that the Python references run.
#pragma once

#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtopp/base/safetensors.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp {

class TensorOutput {
 public:
  // Keeps I64; converts every other type to F32.
  void add(const std::string& name, const at::Tensor& tensor) {
    const bool whole = tensor.scalar_type() == at::kLong;
    kept_.push_back(tensor.detach().to(whole ? at::kLong : at::kFloat).contiguous().cpu().clone());
    const at::Tensor& kept = kept_.back();
    sources_.push_back({name, whole ? "I64" : "F32", kept.sizes().vec(),
                        std::span(static_cast<const std::byte*>(kept.const_data_ptr()), kept.nbytes())});
  }
  void write(const char* path) const { write_safetensors(path, sources_); }

 private:
  std::deque<at::Tensor> kept_;
  std::vector<TensorSource> sources_;
};

// Reads an I64, F64 or F32 tensor of a file. Throws std::runtime_error if no tensor has this name.
inline at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.find(name);
  if (view == nullptr) throw std::runtime_error("no tensor named " + name);
  const at::ScalarType type = view->dtype == "I64"   ? at::kLong
                              : view->dtype == "F64" ? at::kDouble
                                                     : at::kFloat;
  const at::Tensor tensor = at::empty(view->shape, type);
  ops::copy_from_bytes(view->bytes, tensor);
  return tensor;
}

}  // namespace dtopp
