/* session_seeds.c - write the states that fuzz_session begins with into a folder: `make fuzz-states`. */
#include <stdio.h>

void session_seeds(const char *folder); /* fuzz_session.c */

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: session_seeds FOLDER\n");
        return 2;
    }
    session_seeds(argv[1]);
    return 0;
}
