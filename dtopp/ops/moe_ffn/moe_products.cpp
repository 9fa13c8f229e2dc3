#include "dtopp/ops/moe_ffn/moe_products.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "dtopp/ops/core/torch.h"

namespace dtopp {
namespace {

constexpr std::string_view kNone = "grouped_mm", kAll = "fused";

// Atomic, because compute threads (including autograd's) read it. An environment variable could not be
// written while they run.
std::atomic<unsigned long> chosen{0};

std::string listed(const OwnProducts& own, std::string_view between) {
  std::string text;
  for (size_t p = 0; p < own.size(); ++p)
    if (own[p]) text.append(text.empty() ? "" : between).append(kMoeProductNames[p]);
  return text;
}

}  // namespace

std::optional<MoeProduct> moe_product_named(std::string_view name) {
  const auto* known = std::ranges::find(kMoeProductNames, name);
  if (known == kMoeProductNames.end()) return std::nullopt;
  return static_cast<MoeProduct>(known - kMoeProductNames.begin());
}

std::optional<OwnProducts> parse_own_products(std::string_view text) {
  if (text == kNone) return OwnProducts();
  if (text == kAll) return ~OwnProducts();
  OwnProducts own;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto product = moe_product_named(text.substr(begin, end - begin));
    if (!product) return std::nullopt;
    own.set(static_cast<size_t>(*product));
    begin = end + 1;
  }
  return own;
}

std::string own_products_text(const OwnProducts& own) {
  return own.none() ? std::string(kNone) : listed(own, ",");
}

std::string known_own_products() {
  return std::string(kNone) + ", " + std::string(kAll) + " or a list of " + listed(~OwnProducts(), ", ");
}

std::optional<OwnProducts> wished_own_products() {
  const char* wish = std::getenv("DTOPP_MOE_PRODUCTS");
  if (wish == nullptr || *wish == 0) return std::nullopt;
  const auto own = parse_own_products(wish);
  TORCH_CHECK(own, "moe_ffn: DTOPP_MOE_PRODUCTS: expected ", known_own_products(), ", got '", wish, "'");
  return own;
}

OwnProducts own_products() {
  const auto wish = wished_own_products();
  return wish ? *wish : OwnProducts(chosen.load());
}

void choose_own_products(const OwnProducts& own) { chosen.store(own.to_ulong()); }

}  // namespace dtopp
