/* What is wrong with a path that is no GGUF file, and how to get one. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf_impl.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

/* OWNER/NAME, as Hugging Face names repositories. */
static bool is_repository(const char *s)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t owner = strspn(s, word);
    return owner > 0 && s[0] != '.' && s[owner] == '/' && s[owner + 1] != '\0' && s[owner + 1] != '.' &&
           s[owner + 1 + strspn(s + owner + 1, word)] == '\0' && !ends_with(s, ".gguf");
}

int gguf_refuse_missing(struct err *e, const char *path)
{
    if (is_repository(path))
        return err_set(e, ERR_NO,
                       "%s: no such file: a model is given as a GGUF file, not as a repository. scripts/get-model "
                       "REPOSITORY FILE.gguf fetches a file from a Hugging Face repository with GGUF files (often "
                       "%s-GGUF) and prints its path",
                       path, path);
    return err_set(e, ERR_NO, "%s: no such file: a GGUF file is needed; scripts/get-model fetches one", path);
}

int gguf_refuse_directory(struct err *e, const char *path)
{
    char model[256] = "";
    bool other = false;
    DIR *d = opendir(path);
    for (struct dirent *en; d && (en = readdir(d));) {
        if (ends_with(en->d_name, ".gguf") && (!model[0] || strcmp(en->d_name, model) < 0))
            snprintf(model, sizeof model, "%s", en->d_name);
        other = other || ends_with(en->d_name, ".safetensors") || strcmp(en->d_name, "config.json") == 0;
    }
    if (d)
        closedir(d);
    if (model[0])
        return err_set(e, ERR_NO, "%s: is a directory: name the GGUF file in it, %.100s", path, model);
    if (other)
        return err_set(e, ERR_NO,
                       "%s: is a directory with a model in another format: convert it to a GGUF file with "
                       "convert_hf_to_gguf.py of llama.cpp, or get one with scripts/get-model REPOSITORY FILE.gguf",
                       path);
    return err_set(e, ERR_NO, "%s: is a directory: a GGUF file is needed; scripts/get-model fetches one", path);
}
