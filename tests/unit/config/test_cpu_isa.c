/* Is the ISA path chosen as asked, and never a wider one than the processor runs? The oracle for
 * the processor is /proc/cpuinfo: the kernel's own reading of CPUID. */
#include "config/cpu_isa.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void setup(void)
{
    unsetenv("KVNODE_ISA");
}

TestSuite(cpu_isa, .init = setup, .timeout = 5);

static bool has_flags(const char *line, const char *const *flags)
{
    for (; *flags; flags++) {
        char word[32];
        (void)snprintf(word, sizeof word, " %s ", *flags);
        if (!strstr(line, word))
            return false;
    }
    return true;
}

Test(cpu_isa, detection_agrees_with_the_kernel)
{
    static const char *const avx2[] = {"avx2", "fma", "f16c", NULL};
    static const char *const avx512[] = {"avx512f",  "avx512bw",    "avx512dq",
                                         "avx512vl", "avx512_vnni", NULL};
    enum cpu_isa want = CPU_ISA_PLAIN;
    char line[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f) && strncmp(line, "flags", 5) != 0)
        ;
    fclose(f);
    line[strcspn(line, "\n")] = ' ';
    if (has_flags(line, avx2))
        want = has_flags(line, avx512) ? CPU_ISA_AVX512 : CPU_ISA_AVX2;
    cr_expect_str_eq(cpu_isa_name(cpu_isa_detect()), cpu_isa_name(want));
}

Test(cpu_isa, auto_is_the_widest)
{
    enum cpu_isa isa = CPU_ISA_PLAIN;
    cr_assert_eq(cpu_isa_choose("auto", &isa, NULL), OK);
    cr_expect_eq(isa, cpu_isa_detect());
    cr_assert_eq(cpu_isa_choose(NULL, &isa, NULL), OK);
    cr_expect_eq(isa, cpu_isa_detect());
}

Test(cpu_isa, the_environment_counts_only_when_nothing_is_asked_for)
{
    enum cpu_isa isa = CPU_ISA_AVX512;
    setenv("KVNODE_ISA", "plain", 1);
    cr_assert_eq(cpu_isa_choose(NULL, &isa, NULL), OK);
    cr_expect_eq(isa, CPU_ISA_PLAIN);
    cr_assert_eq(cpu_isa_choose("auto", &isa, NULL), OK);
    cr_expect_eq(isa, cpu_isa_detect());
    setenv("KVNODE_ISA", "", 1);
    cr_assert_eq(cpu_isa_choose(NULL, &isa, NULL), OK);
    cr_expect_eq(isa, cpu_isa_detect());
}

Test(cpu_isa, every_path_is_granted_up_to_the_widest)
{
    for (enum cpu_isa want = CPU_ISA_PLAIN; want <= CPU_ISA_AVX512; want++) {
        enum cpu_isa isa = CPU_ISA_PLAIN;
        struct err_info ei = {0};
        enum err rc = cpu_isa_choose(cpu_isa_name(want), &isa, &ei);
        if (want <= cpu_isa_detect())
            cr_expect(rc == OK && isa == want);
        else
            cr_expect(rc == ERR_UNSUPPORTED && strstr(ei.text, cpu_isa_name(want)));
    }
}

Test(cpu_isa, an_unknown_name_is_refused_with_its_source)
{
    enum cpu_isa isa;
    struct err_info ei = {0};
    cr_expect_eq(cpu_isa_choose("AVX2", &isa, &ei), ERR_PARSE);
    cr_expect_not_null(strstr(ei.text, "\"AVX2\""));
    setenv("KVNODE_ISA", "sse9", 1);
    cr_expect_eq(cpu_isa_choose(NULL, &isa, &ei), ERR_PARSE);
    cr_expect_not_null(strstr(ei.text, "KVNODE_ISA: \"sse9\""));
}
