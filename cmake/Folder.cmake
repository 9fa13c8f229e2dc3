# dtopp_folder(FOLDER [LIBRARY ops] [OPTIMIZE] [DEPENDS folder...] [LINK library...] [LINK_PRIVATE library...])
#
# Makes one target of the sources in dtopp/FOLDER, without its subfolders: dtopp_ops_route for ops/route.
# DEPENDS lists the folders whose headers it may include; a folder may also include what those depend on.
# scripts/check_includes.py reads these calls and checks every include against them.
#
#   LIBRARY ops   an object library, part of libdtopp_ops.so; otherwise a static library
#   OPTIMIZE      -O3; other folders spend no time at run time, and -O1 compiles them a third faster
#
# Sources named *_cuda.cpp and *_cuda.cu go into libdtopp_cuda.so.
function(dtopp_folder folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OPTIMIZE" "LIBRARY" "DEPENDS;LINK;LINK_PRIVATE")
  string(REPLACE "/" "_" target "dtopp_${folder}")
  set(path "${CMAKE_SOURCE_DIR}/dtopp/${folder}")
  file(GLOB sources CONFIGURE_DEPENDS "${path}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  set(ops "${arg_LIBRARY}")
  set(torch "${ops}")
  set(libraries "")
  foreach(dependency ${arg_DEPENDS})
    string(REPLACE "/" "_" name "dtopp_${dependency}")
    get_property(is_ops GLOBAL PROPERTY DTOPP_${dependency}_OPS)
    get_property(uses_torch GLOBAL PROPERTY DTOPP_${dependency}_TORCH)
    if(uses_torch)
      set(torch TRUE)
    endif()
    if(is_ops AND NOT ops)
      set(name dtopp_ops)
    endif()
    list(APPEND libraries ${name})
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  set_property(GLOBAL PROPERTY DTOPP_${folder}_OPS "${ops}")
  set_property(GLOBAL PROPERTY DTOPP_${folder}_TORCH "${torch}")

  if(NOT sources)  # headers only, or CUDA sources only
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${libraries} ${arg_LINK})
    return()
  endif()
  if(ops)
    add_library(${target} OBJECT ${sources})
    target_link_libraries(${target} PUBLIC torch::cpu)
    set_property(GLOBAL APPEND PROPERTY DTOPP_OPS_TARGETS ${target})
  else()
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PUBLIC ${libraries} ${arg_LINK} PRIVATE ${arg_LINK_PRIVATE})
  endif()
  if(torch)
    dtopp_use_torch_header(${target})
  endif()
  if(NOT arg_OPTIMIZE AND NOT ops)
    dtopp_compile_fast(${target})
  endif()
endfunction()

# torch's headers take seconds to parse: they are compiled once, for ops/core, and reused by every target.
function(dtopp_use_torch_header target)
  if(target STREQUAL "dtopp_ops_core")
    target_precompile_headers(dtopp_ops_core PRIVATE "${CMAKE_SOURCE_DIR}/dtopp/ops/core/torch.h")
  else()
    target_precompile_headers(${target} REUSE_FROM dtopp_ops_core)
  endif()
  # A precompiled header needs the same flags everywhere, in programs too.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC>)
endfunction()

function(dtopp_compile_fast target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()

# libdtopp_ops.so: every folder with LIBRARY ops. It needs torch alone.
function(dtopp_ops_library)
  get_property(targets GLOBAL PROPERTY DTOPP_OPS_TARGETS)
  list(TRANSFORM targets REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(dtopp_ops SHARED ${objects})
  set_target_properties(dtopp_ops PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(dtopp_ops PUBLIC torch::cpu)
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
  set_source_files_properties("${CMAKE_SOURCE_DIR}/dtopp/distributed/collectives/nccl_backend_cuda.cpp"
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
endfunction()
