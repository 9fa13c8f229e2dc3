#include "dtopp/models/language_model.h"

#include <fstream>

#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::models {
namespace {

std::vector<int32_t> offsets(const at::Tensor& tokens_BL) {
  const at::Tensor found = document_offsets(tokens_BL, 0);
  return {found.const_data_ptr<int32_t>(), found.const_data_ptr<int32_t>() + found.numel()};
}

TEST(DocumentOffsets, a_document_ends_with_its_end_of_text_or_its_window) {
  const at::Tensor tokens_BL = at::tensor({5, 0, 6, 7, 8, 0, 0, 9, 5, 6, 7, 8}, at::kLong).view({3, 4});
  EXPECT_EQ(offsets(tokens_BL), (std::vector<int32_t>{0, 2, 4, 6, 7, 8, 12}));
  EXPECT_EQ(offsets(tokens_BL.narrow(0, 2, 1)), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(offsets(at::empty({0, 4}, at::kLong)), std::vector<int32_t>{0});
}

std::vector<data::TokenStream> one_stream(const ScratchDirectory& scratch) {
  const auto path = scratch / "ids.npy";
  std::ofstream(path, std::ios::binary) << std::string(8, '\1');
  std::vector<data::TokenStream> streams;
  streams.push_back(data::TokenStream::open(path));
  return streams;
}

TEST(EndOfDocuments, is_asked_for_where_tokens_see_their_document_alone) {
  const ScratchDirectory scratch;
  const std::vector<data::TokenStream> streams = one_stream(scratch);
  config::RunConfig config;
  EXPECT_EQ(end_of_documents(config, streams, {}), std::nullopt);
  config.model.attend_across_documents = false;
  EXPECT_THROW(end_of_documents(config, streams, {}), UsageError);
  config.data.end_of_text = 7;
  EXPECT_EQ(end_of_documents(config, streams, {}), 7);
}

}  // namespace

}  // namespace dtopp::models
