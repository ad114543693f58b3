// What every C and C++ program shares: a check that names its line.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#define CHECK(x) \
    do { \
        if (!(x)) { \
            printf("line %d: %s\n", __LINE__, #x); \
            fflush(stdout); \
            _Exit(1); \
        } \
    } while (0)
