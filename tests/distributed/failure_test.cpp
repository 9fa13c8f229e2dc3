#include "dtopp/distributed/failure.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tests/base/scratch_directory.h"

namespace dtopp::distributed {
namespace {

TEST(WithMemoryAdvice, adds_the_advice_to_a_lack_of_memory_alone) {
  const auto resource_error = [](const auto& body) {
    return error_of<ResourceError>([&] { with_memory_advice("lower --workers", body); });
  };
  EXPECT_EQ(resource_error([] { throw std::bad_alloc(); }), "out of memory: lower --workers");
  EXPECT_EQ(resource_error([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory left"); }),
            "out of device memory: lower --workers");
  EXPECT_EQ(resource_error([] { at::empty({int64_t{1} << 50}); }), "out of memory: lower --workers");
  EXPECT_THROW(with_memory_advice("lower --workers", [] { TORCH_CHECK(false, "another error"); }),
               c10::Error);
  EXPECT_EQ(resource_error([] { throw ResourceError("a.txt: out of memory"); }), "a.txt: out of memory");
  EXPECT_THROW(with_memory_advice("lower --workers", [] { throw DataError("damaged"); }), DataError);
}

TEST(FailureOf, a_lack_of_memory_names_no_setting_that_the_command_may_not_have) {
  EXPECT_EQ(failure_of(std::bad_alloc()).message, "out of memory: free some, or use a machine with more");
  EXPECT_EQ(failure_of(std::bad_alloc()).status, ExitStatus::kResource);
  try {
    at::empty({int64_t{1} << 50});
    ADD_FAILURE() << "this machine has a petabyte";
  } catch (const c10::Error& error) {
    EXPECT_EQ(failure_of(error).message, failure_of(std::bad_alloc()).message);
  }
}

}  // namespace

}  // namespace dtopp::distributed
