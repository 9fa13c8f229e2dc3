# dtopp_library(NAME [SHARED] [TORCH] [OPTIMIZE])
#
# Begins the library dtopp_NAME; the calls of dtopp_folder that follow fill it.
#
#   SHARED     a shared library; otherwise a static one
#   TORCH      includes torch's headers
#   OPTIMIZE   -O3; other libraries spend no time at run time, and -O1 compiles them a third faster
function(dtopp_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SHARED;TORCH;OPTIMIZE" "" "")
  set(target dtopp_${name})
  if(arg_SHARED)
    add_library(${target} SHARED)
    set_target_properties(${target} PROPERTIES DEFINE_SYMBOL "")
  else()
    add_library(${target} STATIC)
  endif()
  if(arg_TORCH)
    dtopp_use_torch_header(${target})
  else()
    dtopp_use_standard_header(${target})
  endif()
  if(NOT arg_OPTIMIZE)
    dtopp_compile_fast(${target})
  endif()
  set_property(GLOBAL PROPERTY DTOPP_LIBRARY ${target})
  set(unit_bytes 80000)
  if(arg_TORCH AND NOT arg_OPTIMIZE)
    set(unit_bytes 130000)
  endif()
  set_property(GLOBAL PROPERTY DTOPP_UNIT_BYTES ${unit_bytes})
endfunction()

# dtopp_folder(FOLDER [DEPENDS folder...] [LINK library...] [LINK_PRIVATE library...])
#
# Adds the sources in dtopp/FOLDER, without its subfolders, to the library begun last. DEPENDS lists the folders
# whose headers it may include; a folder may also include what those depend on. scripts/check_includes.py reads
# these calls and checks every include against them.
#
# Sources named *_cuda.cpp and *_cuda.cu go into libdtopp_cuda.so.
function(dtopp_folder folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DEPENDS;LINK;LINK_PRIVATE")
  get_property(target GLOBAL PROPERTY DTOPP_LIBRARY)
  set_property(GLOBAL PROPERTY DTOPP_LIBRARY_OF_${folder} ${target})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/dtopp/${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  target_sources(${target} PRIVATE ${sources})
  get_property(unit_bytes GLOBAL PROPERTY DTOPP_UNIT_BYTES)
  dtopp_compile_together(${target} ${unit_bytes} ${sources})
  foreach(dependency ${arg_DEPENDS})
    get_property(library GLOBAL PROPERTY DTOPP_LIBRARY_OF_${dependency})
    if(NOT library STREQUAL target)
      target_link_libraries(${target} PUBLIC ${library})
    endif()
  endforeach()
  target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE ${arg_LINK_PRIVATE})
endfunction()

# Compiles the sources in units of about UNIT_BYTES, across folders. A unit with the headers of torch and JSON spends
# ten seconds on their templates, so these units are large. Smaller units keep more than two cores busy to the end.
function(dtopp_compile_together target unit_bytes)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_property(bytes GLOBAL PROPERTY DTOPP_BYTES_${target})
  if(NOT bytes)
    set(bytes 0)
  endif()
  foreach(source ${ARGN})
    file(SIZE "${source}" size)
    math(EXPR bytes "${bytes} + ${size}")
    math(EXPR unit "${bytes} / ${unit_bytes}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${unit})
  endforeach()
  set_property(GLOBAL PROPERTY DTOPP_BYTES_${target} ${bytes})
endfunction()

# torch's headers take seconds to parse: they are compiled once, for dtopp_ops, and reused by every target.
function(dtopp_use_torch_header target)
  if(target STREQUAL "dtopp_ops")
    target_precompile_headers(dtopp_ops PRIVATE "${CMAKE_SOURCE_DIR}/dtopp/ops/core/torch.h")
  else()
    target_precompile_headers(${target} REUSE_FROM dtopp_ops)
  endif()
  # A precompiled header needs the same flags everywhere, in programs too.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC>)
endfunction()

# The same for the headers that most folders without torch include. The target that compiles them has no
# definitions, because those of a precompiled header must be equal wherever it is used.
function(dtopp_use_standard_header target)
  if(NOT TARGET dtopp_standard_header)
    file(WRITE "${CMAKE_BINARY_DIR}/standard_header.cpp" "")
    add_library(dtopp_standard_header OBJECT "${CMAKE_BINARY_DIR}/standard_header.cpp")
    target_link_libraries(dtopp_standard_header PRIVATE nlohmann_json::nlohmann_json)
    target_precompile_headers(dtopp_standard_header PRIVATE <algorithm> <array> <charconv> <chrono> <cmath> <cstdint>
      <filesystem> <fstream> <functional> <map> <memory> <optional> <set> <span> <sstream> <string> <string_view>
      <thread> <unordered_map> <vector> <nlohmann/json.hpp>)
  endif()
  target_precompile_headers(${target} REUSE_FROM dtopp_standard_header)
endfunction()

function(dtopp_compile_fast target)
  set(fast -O1)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # GCC sets these from -O2 on. GCC 13 and newer reject a precompiled header that was compiled with other settings.
    list(APPEND fast -munroll-only-small-loops -mvzeroupper)
  endif()
  target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${fast}>")
endfunction()

# libdtopp_cuda.so: the sources named *_cuda.cpp and *_cuda.cu of all folders.
function(dtopp_cuda_library)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS
    "${CMAKE_SOURCE_DIR}/dtopp/*_cuda.cpp" "${CMAKE_SOURCE_DIR}/dtopp/*_cuda.cu")
  add_library(dtopp_cuda SHARED ${sources})
  dtopp_set_cuda_devices(${sources})
  target_link_libraries(dtopp_cuda PRIVATE dtopp_ops torch::cuda)
  dtopp_use_torch_header(dtopp_cuda)
  set_target_properties(dtopp_cuda PROPERTIES DEFINE_SYMBOL "")
  # NCCL's headers change torch's.
  set_source_files_properties("${CMAKE_SOURCE_DIR}/dtopp/distributed/nccl_backend_cuda.cpp"
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# dtopp_embed(TARGET NAME HEADER constant files...): a source file that defines each std::string_view constant of
# HEADER as the text of its files, one after another.
function(dtopp_embed target name header)
  set(output "${CMAKE_BINARY_DIR}/${name}.cpp")
  set(constants "")
  set(definitions "")
  set(files "")
  while(ARGN)
    list(POP_FRONT ARGN constant)
    list(POP_FRONT ARGN text_files)
    list(APPEND constants ${constant})
    list(APPEND definitions "-D${constant}=${text_files}")
    string(REPLACE "|" ";" text_files "${text_files}")
    list(APPEND files ${text_files})
  endwhile()
  add_custom_command(OUTPUT "${output}"
    COMMAND "${CMAKE_COMMAND}" "-DOUTPUT=${output}" "-DHEADER=${header}" "-DCONSTANTS=${constants}" ${definitions}
      -P "${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake"
    DEPENDS ${files} "${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake" VERBATIM)
  target_sources(${target} PRIVATE "${output}")
  set_source_files_properties("${output}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()
