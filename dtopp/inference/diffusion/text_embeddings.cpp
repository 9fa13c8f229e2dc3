#include "dtopp/inference/diffusion/text_embeddings.h"

#include <span>

#include "dtopp/base/errors.h"
#include "dtopp/base/float_type.h"
#include "dtopp/base/safetensors.h"

namespace dtopp::inference {

at::Tensor read_text_embeddings(const std::filesystem::path& path, const config::ModelConfig& model) {
  const SafetensorsFile file(path);
  const TensorView* text = file.find("text");
  if (text == nullptr) throw DataError(path.string() + ": holds no tensor \"text\"");
  const auto type = float_type_of(text->dtype);
  if (!type || text->shape.size() != 3 || text->shape[0] == 0 || text->shape[1] == 0)
    throw DataError(path.string() + ": \"text\" must be F32, F16 or BF16 [texts, tokens, size]");
  if (text->shape[2] != model.text_size || text->shape[1] > model.text_length)
    throw UsageError(path.string() + ": texts of " + std::to_string(text->shape[1]) + " embeddings of size " +
                     std::to_string(text->shape[2]) + ", but the model takes up to " +
                     std::to_string(model.text_length) + " of size " + std::to_string(model.text_size));
  if (!all_finite(*type, text->bytes))
    throw DataError(path.string() + ": \"text\" holds numbers that are not finite");
  const at::Tensor values = at::empty(text->shape, at::kFloat);
  widen(*type, text->bytes, {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return at::constant_pad_nd(values, {0, 0, 0, model.text_length - values.size(1)});
}

}  // namespace dtopp::inference
