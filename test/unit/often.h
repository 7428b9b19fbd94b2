/* often.h - how often a test repeats what it draws at random. Under the address sanitizer, which makes a run
 * some ten times slower, a third. What is drawn later is not seen under it. */
#ifndef TEST_OFTEN_H
#define TEST_OFTEN_H

#ifdef __SANITIZE_ADDRESS__
#define OFTEN(n) ((n) / 3)
#else
#define OFTEN(n) (n)
#endif

#endif
