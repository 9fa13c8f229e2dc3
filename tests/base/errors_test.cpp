#include "dtopp/base/errors.h"

#include <gtest/gtest.h>

namespace dtopp {
namespace {

template <class T>
int status_of_thrown() {
  try {
    throw T("what happened");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "what happened");
    return static_cast<int>(error.status());
  }
}

TEST(Errors, carry_the_exit_status_promised_to_users) {
  EXPECT_EQ(status_of_thrown<UsageError>(), 2);
  EXPECT_EQ(status_of_thrown<DataError>(), 3);
  EXPECT_EQ(status_of_thrown<CheckpointError>(), 4);
  EXPECT_EQ(status_of_thrown<ResourceError>(), 5);
  EXPECT_EQ(status_of_thrown<NumericalError>(), 6);
  EXPECT_EQ(status_of_thrown<Stopped>(), 75);
}

TEST(Errors, of_one_status_are_not_caught_as_another) {
  EXPECT_THROW(
      {
        try {
          throw DataError("bad data");
        } catch (const CheckpointError&) {
        }
      },
      DataError);
}

}  // namespace
}  // namespace dtopp
