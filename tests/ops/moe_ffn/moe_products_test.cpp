#include "dtopp/ops/moe_ffn/moe_products.h"

#include <gtest/gtest.h>

namespace dtopp::moe_products_test {
namespace {

TEST(MoeProducts, are_named_alone_or_in_lists) {
  EXPECT_EQ(parse_own_products("grouped_mm"), OwnProducts());
  EXPECT_EQ(parse_own_products("fused"), OwnProducts("111111"));
  EXPECT_EQ(parse_own_products("activation"), OwnProducts("000001"));
  EXPECT_EQ(parse_own_products("gate_up_gradient,activation_gradient,activation"), OwnProducts("100101"));
  for (const char* text : {"", "fast", "activation,", ",activation", "activation, projection",
                           "fused,activation", "Activation", "activation_"})
    EXPECT_EQ(parse_own_products(text), std::nullopt) << text;
}

TEST(MoeProducts, are_written_as_they_are_read) {
  for (unsigned long own = 0; own < 64; ++own)
    EXPECT_EQ(parse_own_products(own_products_text(OwnProducts(own))), OwnProducts(own)) << own;
}

}  // namespace
}  // namespace dtopp::moe_products_test
