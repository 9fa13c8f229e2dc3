#include "dtopp/device/known_devices.h"

#include <gtest/gtest.h>

namespace dtopp::device {
namespace {

// Names as `nvidia-smi` prints them, and dense FLOP/s from NVIDIA's data sheets.
TEST(DataSheetRate, knows_a_device_by_its_drivers_name) {
  EXPECT_EQ(data_sheet_rate("NVIDIA H100 80GB HBM3", true), 989e12);
  EXPECT_EQ(data_sheet_rate("NVIDIA H100 PCIe", true), 756e12);
  EXPECT_EQ(data_sheet_rate("NVIDIA H200 NVL", true), 835.5e12);
  EXPECT_EQ(data_sheet_rate("NVIDIA GH200 480GB", false), 67e12);
  EXPECT_EQ(data_sheet_rate("NVIDIA GB200", true), 2500e12);
  EXPECT_EQ(data_sheet_rate("NVIDIA A100-SXM4-80GB", false), 19.5e12);
}

TEST(DataSheetRate, says_nothing_of_others) {
  EXPECT_EQ(data_sheet_rate("NVIDIA GeForce RTX 4090", true), std::nullopt);
  EXPECT_EQ(data_sheet_rate("", true), std::nullopt);
}

TEST(DataSheetRate, agrees_with_what_plans_assume) {
  for (const char* name : {"a100", "h100", "h200"}) {
    std::string upper = name;
    upper[0] = static_cast<char>(upper[0] - 'a' + 'A');
    EXPECT_EQ(data_sheet_rate("NVIDIA " + upper, true), find_device(name).rates->bf16_flops);
    EXPECT_EQ(data_sheet_rate("NVIDIA " + upper, false), find_device(name).rates->fp32_flops);
  }
}

}  // namespace
}  // namespace dtopp::device
