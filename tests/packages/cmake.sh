#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cmake.sh: projects of each kind that CMake has find the installed library below $cmake_finds (CMAKE_PREFIX_PATH) and its programs run:
# find_package(hocket), a module that looks for NCCL by its files, as frameworks have one, and pkg-config as docs/packages.md says.
# tests/debian/installed.sh and the suite `install` run it.
set -u
. tests/support/suite.sh
command -v cmake >/dev/null || { echo "SKIP: cmake is not installed"; exit 0; }
version=$(sed -n 's/^#define HOCKET_\(MAJOR\|MINOR\|PATCH\) //p' include/hocket.h | paste -sd .)
include=$(pkg-config --variable=includedir nccl) library=$(pkg-config --variable=libdir nccl)
project() { # name options; the project's own lines on stdin
  local folder=$tmp/$1
  shift
  mkdir -p "$folder/modules" && cp tests/packages/client.c "$folder/"
  cp "$tmp/FindNCCL.cmake" "$folder/modules/"
  { printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(client C)' 'list(APPEND CMAKE_MODULE_PATH ${CMAKE_SOURCE_DIR}/modules)'; cat; } >"$folder/CMakeLists.txt"
  gives 0 cmake -S "$folder" -B "$folder/build" "$@"
  gives 0 cmake --build "$folder/build"
  gives 0 env LD_LIBRARY_PATH="$library" "$folder/build/client"
  says '0 232'
}
# What such modules do: a header and a library by hints, a version from the header, and a program that asks the library for its own.
cat >"$tmp/FindNCCL.cmake" <<'END'
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT_DIR}/include ${NCCL_INCLUDE_HINT})
find_library(NCCL_LIBRARY nccl HINTS ${NCCL_ROOT_DIR}/lib ${NCCL_LIB_HINT})
file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+$")
string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
string(REPLACE ";" "." NCCL_VERSION "${numbers}")
try_run(ran compiled "${CMAKE_BINARY_DIR}/version" "${CMAKE_SOURCE_DIR}/client.c" CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${NCCL_INCLUDE_DIR}"
  LINK_LIBRARIES "${NCCL_LIBRARY}" RUN_OUTPUT_VARIABLE said)
string(REPLACE "." ";" numbers "${NCCL_VERSION}")
list(GET numbers 0 major)
list(GET numbers 1 minor)
list(GET numbers 2 patch)
math(EXPR code "10000 * ${major} + 100 * ${minor} + ${patch}")
if(NOT said MATCHES "^0 ${code}")
  message(FATAL_ERROR "the header of ${NCCL_VERSION}, and a program says '${said}'")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
END
project config "-DCMAKE_PREFIX_PATH=$cmake_finds" <<END
find_package(hocket $version REQUIRED)
add_executable(client client.c)
target_link_libraries(client PRIVATE hocket::nccl)
END
project static "-DCMAKE_PREFIX_PATH=$cmake_finds" <<'END'
find_package(hocket REQUIRED)
add_executable(client client.c)
target_link_libraries(client PRIVATE hocket::nccl_static)
END
project module "-DNCCL_INCLUDE_HINT=$include" "-DNCCL_LIB_HINT=$library" <<'END'
find_package(NCCL 2.20 REQUIRED)
add_executable(client client.c)
target_include_directories(client PRIVATE ${NCCL_INCLUDE_DIR})
target_link_libraries(client PRIVATE ${NCCL_LIBRARY})
END
if [ -e "$cmake_finds/lib/libnccl.so" ]; then # PyTorch's and others' modules take a folder, which CMake searches by itself
  project root "-DNCCL_ROOT=$cmake_finds" <<'END'
find_package(NCCL REQUIRED)
add_executable(client client.c)
target_include_directories(client PRIVATE ${NCCL_INCLUDE_DIR})
target_link_libraries(client PRIVATE ${NCCL_LIBRARY})
END
fi
# shellcheck disable=SC2016 # CMake's
project pkg_config <<END
find_package(PkgConfig REQUIRED)
$(grep -o 'pkg_check_modules([^`]*)' docs/packages.md)
add_executable(client client.c)
target_link_libraries(client PkgConfig::NCCL)
END
mkdir "$tmp/newer"
printf 'cmake_minimum_required(VERSION 3.16)\nproject(newer C)\nfind_package(hocket 99 REQUIRED)\n' >"$tmp/newer/CMakeLists.txt"
gives 1 cmake -S "$tmp/newer" -B "$tmp/newer/build" "-DCMAKE_PREFIX_PATH=$cmake_finds"
finish "CMake finds it, in $cases steps"
