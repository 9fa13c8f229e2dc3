#include "dtopp/eval/in_training/training_model.h"

#include <cerrno>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/text/token_file.h"

namespace dtopp::eval {

data::Tokenizer training_tokenizer(const config::DataConfig& data, const std::string& key,
                                   const std::string& none) {
  for (const std::string& folder : config::paths_of(data.train)) {
    if (const auto path = data::tokenizer_beside(folder)) return data::Tokenizer::load(*path);
  }
  for (const std::string& path : config::paths_of(data.train)) {
    const bool absent =
        path_kind(path) == PathKind::kNothing && path_kind(path + ".idx") == PathKind::kNothing;
    if (absent) throw file_error("open", path, ENOENT);
  }
  throw UsageError(
      key + ": no data of data.train has a tokenizer.json; prepare it with dtopp prepare text, or set " +
      key + "=" + none);
}

inference::InferenceModel training_model(const config::RunConfig& config, train::Trainer& trainer,
                                         const data::Tokenizer& tokenizer) {
  const models::ParameterLookup parameter = [&](const std::string& name) {
    return trainer.parameters().main_param(name);
  };
  inference::InferenceModel model{
      config, models::bind_language_model(config.model, config.routing, parameter), trainer.routing()};
  model.model.end_of_text = tokenizer.end_of_text();
  return model;
}

}  // namespace dtopp::eval
