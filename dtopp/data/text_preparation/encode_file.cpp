#include "dtopp/data/text_preparation/encode_file.h"

#include <string>

#include "dtopp/base/stop_scope.h"
#include "dtopp/data/text/text_reader.h"

namespace dtopp::data {

std::vector<int64_t> encode_file(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  const int32_t end_of_text = tokenizer.end_of_text();
  std::vector<int64_t> ids;
  TextReader reader(path);
  std::string document;
  while (reader.next(document)) {
    end_if_stopped();
    const auto encoded = at_line(path, reader.line_number(), [&] { return tokenizer.encode(document); });
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    ids.push_back(end_of_text);
  }
  return ids;
}

}  // namespace dtopp::data
