// SectionOf<T, Section>: T is Section or const Section. Its visit_fields takes both, to read and to print.
#pragma once

#include <concepts>
#include <type_traits>

namespace dtopp::config {

template <class T, class Section>
concept SectionOf = std::same_as<std::remove_const_t<T>, Section>;

}  // namespace dtopp::config
