# The parsers of files under libFuzzer with sanitizers: a fixed number of inputs from a fixed seed, on top of the
# corpus kept beside each fuzzer (tests/**/fuzz_NAME.cpp and corpus/NAME). clang builds them, whatever built the rest.
find_program(MILLRACE_CLANG NAMES clang++-14 clang++-15 clang++-16 clang++)
set(fuzzer_library "")
if(MILLRACE_CLANG)
  execute_process(COMMAND ${MILLRACE_CLANG} -fsanitize=fuzzer -print-file-name=libclang_rt.fuzzer-x86_64.a
                  OUTPUT_VARIABLE fuzzer_library OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${fuzzer_library}")
  message(STATUS "fuzzers not built: install clang-14 and libclang-rt-14-dev to fuzz the parsers")
  return()
endif()

set(fuzz_flags -std=c++20 -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -I${CMAKE_SOURCE_DIR}
               -isystem ${CMAKE_BINARY_DIR})
file(GLOB_RECURSE parser_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/millrace/data/text/*.cpp
     ${CMAKE_SOURCE_DIR}/millrace/data/image/*.cpp ${CMAKE_SOURCE_DIR}/millrace/data/files/*.cpp
     ${CMAKE_SOURCE_DIR}/millrace/base/*.cpp ${CMAKE_SOURCE_DIR}/millrace/job/*.cpp)
list(APPEND parser_sources ${CMAKE_SOURCE_DIR}/millrace/data/sampler.cpp
     ${CMAKE_SOURCE_DIR}/millrace/plan/plan_file.cpp ${CMAKE_SOURCE_DIR}/millrace/profile/profile_json.cpp
     ${CMAKE_SOURCE_DIR}/millrace/profile/pipedream_graph.cpp
     ${CMAKE_SOURCE_DIR}/millrace/state/safetensors_read.cpp ${CMAKE_SOURCE_DIR}/millrace/state/safetensors_layout.cpp
     ${CMAKE_SOURCE_DIR}/millrace/state/checkpoint_manifest.cpp ${CMAKE_SOURCE_DIR}/millrace/state/sealed_json.cpp
     ${CMAKE_SOURCE_DIR}/millrace/state/checksum.cpp ${record_sources})
set(fuzz_objects "")
foreach(source ${parser_sources})
  string(MD5 hash ${source})
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_BINARY_DIR}/fuzz/${name}-${hash}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/fuzz
    COMMAND ${MILLRACE_CLANG} ${fuzz_flags} -fsanitize=fuzzer-no-link,address,undefined -MD -MF ${object}.d
            -c ${source} -o ${object}
    DEPENDS ${source} ${record_headers} DEPFILE ${object}.d COMMENT "Building fuzz object ${name}")
  list(APPEND fuzz_objects ${object})
endforeach()

file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz_*.cpp)
foreach(fuzzer ${fuzzers})
  get_filename_component(name ${fuzzer} NAME_WE)
  get_filename_component(folder ${fuzzer} DIRECTORY)
  string(REPLACE "fuzz_" "" corpus ${name})
  set(binary ${CMAKE_BINARY_DIR}/bin/${name})
  add_custom_command(OUTPUT ${binary}
    COMMAND ${MILLRACE_CLANG} ${fuzz_flags} -fsanitize=fuzzer,address,undefined ${fuzzer} ${fuzz_objects} -o ${binary}
            -lfmt -lyaml-cpp -ljpeg -lpng -lprotobuf-lite -lutf8proc -lz -lpthread
    DEPENDS ${fuzzer} ${fuzz_objects} COMMENT "Linking ${name}")
  add_custom_target(${name}_binary ALL DEPENDS ${binary})
  # New inputs go to a folder of the build, found ones never to the corpus.
  set(found ${CMAKE_BINARY_DIR}/fuzz/found_${corpus})
  add_test(NAME Fuzz.${corpus}
    COMMAND sh -c "rm -rf ${found} && mkdir -p ${found} && ${binary} -runs=${MILLRACE_FUZZ_RUNS} -seed=1 -rss_limit_mb=3072 -artifact_prefix=${found}/ ${found} ${folder}/corpus/${corpus}")
  set_tests_properties(Fuzz.${corpus} PROPERTIES TIMEOUT 600)
endforeach()
