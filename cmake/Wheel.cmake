# Settings of a wheel's build (scripts/wheel.sh): it links Debian's libraries statically if archives exist,
# finds torch beside the package in site-packages, and does not depend on the build folder in any byte.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
find_library(JEMALLOC_LIBRARY jemalloc_pic REQUIRED)
find_library(NETTLE_LIBRARY nettle REQUIRED)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib:$ORIGIN/../../torch/lib:$ORIGIN/../../nvidia/cu13/lib")

function(dtopp_install_wheel)
  target_sources(dtopp PRIVATE "${CMAKE_SOURCE_DIR}/cmake/older_glibc.cpp")
  set_source_files_properties("${CMAKE_SOURCE_DIR}/cmake/older_glibc.cpp" PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  # Links only the used parts of libarchive: the rest requires libraries that dtopp does not need.
  set_property(TARGET LibArchive::LibArchive APPEND PROPERTY INTERFACE_LINK_LIBRARIES "${NETTLE_LIBRARY}" ZLIB::ZLIB)
  target_link_options(dtopp PRIVATE LINKER:--gc-sections)
  # Hides the archives' symbols from other libraries, torch among them. Only the allocator's symbols are
  # visible to all.
  set(archives archive crypto deflate jpeg nettle pcre2-8 png utf8proc webp webpdemux xxhash yaml-cpp z zstd)
  list(TRANSFORM archives REPLACE "(.+)" "lib\\1.a")
  list(JOIN archives ":" archives)
  target_link_options(dtopp PRIVATE "LINKER:--exclude-libs,${archives}")

  install(TARGETS dtopp RUNTIME DESTINATION bin)
  install(TARGETS dtopp_ops LIBRARY DESTINATION lib)
  install(FILES "${DTOPP_TORCH_FILE}" DESTINATION lib)
  if(DTOPP_CUDA)
    install(TARGETS dtopp_cuda LIBRARY DESTINATION lib)
  endif()
  install(DIRECTORY assets configs examples DESTINATION files
    PATTERN __pycache__ EXCLUDE PATTERN "lab-*.jsonl.zst" EXCLUDE)
  foreach(package libarchive-dev libboost-dev libcli11-dev libgloo-dev libjemalloc-dev libjpeg62-turbo-dev
      libpcre2-dev libpng-dev libsimdjson-dev libssl-dev libutf8proc-dev libwebp-dev libxxhash-dev libyaml-cpp-dev libzstd-dev nettle-dev
      nlohmann-json3-dev zlib1g-dev)
    install(FILES "/usr/share/doc/${package}/copyright" DESTINATION licenses RENAME "${package}.txt" OPTIONAL)
  endforeach()
endfunction()
