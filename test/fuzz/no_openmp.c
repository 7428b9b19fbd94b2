/* no_openmp.c - one thread, for `make fuzz`: clang comes without OpenMP's runtime. */
int omp_get_num_procs(void);
int omp_get_max_threads(void);
int omp_get_thread_num(void);

int omp_get_num_procs(void)
{
    return 1;
}

int omp_get_max_threads(void)
{
    return 1;
}

int omp_get_thread_num(void)
{
    return 0;
}
